"""One set of limits for who reads headers and for who decodes."""

from __future__ import annotations

import pytest
from triptych_common.media.limits import MediaLimits
from triptych_encoder.settings import EncoderSettings
from triptych_frontend.settings import FrontendSettings


def test_frontend_and_encoder_hold_media_to_the_same() -> None:
    assert FrontendSettings().media_limits == EncoderSettings().media_limits
    values = {
        "max_media_bytes": "4M", "max_image_pixels": 1000, "max_audio_s": 2, "max_video_s": 3, "max_video_pixels": 5000
    }  # fmt: skip
    expected = MediaLimits(4 << 20, 1000, 2, 3, 5000)
    assert FrontendSettings(**values).media_limits == EncoderSettings(**values).media_limits == expected


@pytest.mark.parametrize(("rate", "seconds"), [(8_000, 600), (96_000, 600), (192_000, 300), (768_000, 75)])
def test_sounds_of_a_high_rate_are_shorter(rate: int, seconds: float) -> None:
    assert FrontendSettings().media_limits.max_samples(rate) == seconds * rate

"""What pictures are on the wire behind the gateway: bytes that the encoder was sent, and that were fetched from it."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_UPLOADED, _FETCHED = "triptych_encoder_uploaded_bytes_total", "triptych_encoder_fetched_bytes_total"
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Traffic:
    """Bytes so far, or of a time: of raw files to the encoder, and of tensors from it to the engine."""

    uploaded: int
    fetched: int

    def since(self, before: Traffic) -> Traffic:
        """What came on top."""
        return Traffic(self.uploaded - before.uploaded, self.fetched - before.fetched)


def parse_traffic(metrics: str) -> Traffic:
    """From the text that Prometheus is told. Raises KeyError where a counter is missing."""
    samples = {sample.name: int(sample.value) for family in text_string_to_metric_families(metrics) for sample in family.samples}
    return Traffic(samples[_UPLOADED], samples[_FETCHED])


def read_traffic(port: int) -> Traffic:
    """Ask the encoder whose metrics are at this port of this machine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_TIMEOUT_S) as response:
        return parse_traffic(response.read().decode())

"""The mock reports the media of raw prompts as it reports those of chats."""

from __future__ import annotations

from typing import Any

from support.builders.media_files import image
from support.mock import mock_server
from triptych.v1 import common_pb2, encoder_pb2, generation_pb2, generation_pb2_grpc
from triptych_common.rpc.channels import open_channel


def reports_in(trailers: Any) -> list[generation_pb2.MediaReport]:
    return [generation_pb2.MediaReport.FromString(value) for key, value in trailers if key == "triptych-media-bin"]


async def test_media_of_a_completion_are_reported_whole_and_streamed() -> None:
    item = common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, data=image())
    request = generation_pb2.CompleteRequest(text="<image> What?", media=[item])
    async with mock_server() as mock, open_channel(mock.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        whole = stub.Complete(request)
        answer = await whole
        stream = stub.CompleteStream(generation_pb2.CompleteStreamRequest(complete=request))
        responses = [response async for response in stream]
        assert reports_in(await whole.trailing_metadata()) == [*answer.media]
        assert reports_in(await stream.trailing_metadata()) == [*responses[-1].media]
    assert [report.tier for report in answer.media] == [encoder_pb2.CACHE_TIER_MISS]
    assert [len(response.media) for response in responses] == [0] * (len(responses) - 1) + [1]
    assert responses[-1].media[0].tier == encoder_pb2.CACHE_TIER_LOCAL
    assert answer.usage.image_tokens == responses[-1].usage.image_tokens == answer.media[0].num_tokens

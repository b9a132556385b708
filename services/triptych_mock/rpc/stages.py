"""PreprocessService and DetokenizeService."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import AsyncIterator

import grpc
from triptych.errors import InvalidRequestError
from triptych.v1 import detokenize_pb2, detokenize_pb2_grpc, preprocess_pb2, preprocess_pb2_grpc

from triptych_mock.media import NUM_TOKENS, items_of
from triptych_mock.play import Player
from triptych_mock.rpc.seen import current_call
from triptych_mock.script import find_script, play_fault
from triptych_mock.vocabulary import Vocabulary

Context = grpc.aio.ServicerContext
#: Stands for each token of a media item in a prompt.
_PLACEHOLDER = "<media>"


class StagesServicer(preprocess_pb2_grpc.PreprocessServiceServicer, detokenize_pb2_grpc.DetokenizeServiceServicer):
    """The stages before and after generation. The chat template is `role: text`, one line for each message."""

    def __init__(self, player: Player, vocabulary: Vocabulary, max_model_len: int) -> None:
        self._player = player
        self._vocabulary = vocabulary
        self._max_model_len = max_model_len

    async def Preprocess(self, request: preprocess_pb2.PreprocessRequest, context: Context) -> preprocess_pb2.PreprocessResponse:
        response = preprocess_pb2.PreprocessResponse(max_model_len=self._max_model_len)
        kind = request.WhichOneof("input")
        if kind is None:
            raise InvalidRequestError("input is needed: chat or complete", field="input")
        if kind == "complete":
            self._player.check_model(request.complete.model)
            response.prompt = self._player.prompt_text(request.complete)
            response.token_ids.extend(self._vocabulary.encode(response.prompt))
            return response
        self._player.check_model(request.chat.model)
        for message in request.chat.messages:
            self._append(response, f"{message.role}:")
            for part in message.content:
                if part.HasField("media"):
                    place = response.placeholders.add(offset=len(response.token_ids), length=NUM_TOKENS)
                    place.media_index = len(response.placeholders) - 1
                    response.prompt += _PLACEHOLDER
                    response.token_ids.extend(self._vocabulary.ids(_PLACEHOLDER) * NUM_TOKENS)
                else:
                    self._append(response, f" {part.text}")
            self._append(response, "\n")
        for _, item in items_of(request.chat.messages):
            # The key that the mock's encoder gives these bytes.
            response.media.add(modality=item.modality, key=hashlib.sha256(item.data).digest() if item.data else b"")
        return response

    def _append(self, response: preprocess_pb2.PreprocessResponse, text: str) -> None:
        response.prompt += text
        response.token_ids.extend(self._vocabulary.encode(text))

    async def Tokenize(self, request: preprocess_pb2.TokenizeRequest, context: Context) -> preprocess_pb2.TokenizeResponse:
        script = find_script(request.text)
        if script is not None:
            seen = current_call.get()
            await play_fault(script.fault, seen.num_earlier if seen else 0, context)
        token_ids = self._vocabulary.encode(request.text)
        tokens = [self._vocabulary.decode([token_id]) for token_id in token_ids]
        return preprocess_pb2.TokenizeResponse(token_ids=token_ids, tokens=tokens, max_model_len=self._max_model_len)

    async def Detokenize(self, request: detokenize_pb2.DetokenizeRequest, context: Context) -> detokenize_pb2.DetokenizeResponse:
        return detokenize_pb2.DetokenizeResponse(text=self._vocabulary.decode(request.token_ids))

    async def DetokenizeStream(
        self, request_iterator: AsyncIterator[detokenize_pb2.DetokenizeStreamRequest], context: Context
    ) -> AsyncIterator[detokenize_pb2.DetokenizeStreamResponse]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        async for request in request_iterator:
            utf8 = b"".join(self._vocabulary.utf8(token_id, f"token_ids[{i}]") for i, token_id in enumerate(request.token_ids))
            yield detokenize_pb2.DetokenizeStreamResponse(text=decoder.decode(utf8))
        yield detokenize_pb2.DetokenizeStreamResponse(text=decoder.decode(b"", final=True))

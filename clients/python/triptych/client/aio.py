"""The client for asyncio."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Self, Unpack

import grpc

from triptych.accumulators import ChatAccumulator, CompleteAccumulator
from triptych.client.aio_rpc import unary
from triptych.client.aio_streams import AsyncChatStream, AsyncCompleteStream
from triptych.client.answers import Parsed, ParsedT, RankedDocument, constrained, parsed, ranked
from triptych.client.calls import CallDefaults
from triptych.client.channels import open_aio_channel, target_of
from triptych.client.config import KeepAliveConfig, RetryConfig, TLSConfig, key_of
from triptych.requests import build
from triptych.requests import options as of
from triptych.requests.fields import listed
from triptych.requests.types import Messages, PoolingInput, PoolingInputs
from triptych.v1 import (
    detokenize_pb2,
    detokenize_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    preprocess_pb2,
    preprocess_pb2_grpc,
)


class _Stubs:
    """A channel with its stubs."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.generation = generation_pb2_grpc.GenerationServiceStub(channel)
        self.preprocess = preprocess_pb2_grpc.PreprocessServiceStub(channel)
        self.detokenize = detokenize_pb2_grpc.DetokenizeServiceStub(channel)


class AsyncClient:
    """A client of a Triptych gateway, for asyncio. `Client` is the same for threads.

        async with AsyncClient("127.0.0.1:50051") as client:
            response = await client.chat("What is this?", images=["photo.jpg"], max_tokens=64)
            print(response.choices[0].text)

    Each method takes either a finished request of `triptych.v1`, or values and keyword options, which have the names of the fields
    of the contracts (docs/contracts.md). All return messages of `triptych.v1`. Options of every call are `timeout_s`, `request_id`
    and `metadata`. In a program that uses OpenTelemetry, each call carries the place in the current trace.

    The client connects at its first call, and again after each loss.

    An `AsyncClient` belongs to the event loop of its first call. Cancelling a task cancels its call, and the server stops its work.
    Requests are built in that loop: to keep it free while large files are read and pictures are encoded, build them in a thread, by
    `asyncio.to_thread(triptych.chat_request, ...)`.

    Threads may share a `Client`. A process that forks must do so before the first call: neither connections nor the threads of gRPC
    survive a fork. To start processes later, use `multiprocessing` with the start method "spawn", and make a client in each.

    All methods raise:
        TriptychError: the call failed; the class says why (`triptych.errors`). The error of gRPC is its `__cause__`.
        InvalidRequestError: a value that the request cannot hold, before anything is sent.
        OSError: a media file cannot be read.
        TypeError: an unknown keyword.

    Args:
        address: `host:port`, or another target of gRPC (`dns:///...`, `unix:...`). Several, and all that a `dns:` name stands for,
            take turns (`round_robin`). None: those of the environment's TRIPTYCH_ADDRESS, or 127.0.0.1:50051.
        api_key: sent with each call, as `authorization: Bearer ...`. None: that of TRIPTYCH_API_KEY, if it is set.
        timeout_s: deadline of calls that have none of their own, in seconds. None: no deadline.
        tls: None: no TLS.
        retry: None: the defaults of `RetryConfig`.
        keepalive: None: the defaults of `KeepAliveConfig`.
        interceptors: of gRPC, around each call.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float | None = None,
        tls: TLSConfig | None = None,
        retry: RetryConfig | None = None,
        keepalive: KeepAliveConfig | None = None,
        interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
    ) -> None:
        #: Takes the options of the call itself out of those of a method.
        self._call = CallDefaults(key_of(api_key), timeout_s).take
        self._open = partial(open_aio_channel, target_of(address, tls, retry, keepalive), interceptors)
        self._opened: _Stubs | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def _stubs(self) -> _Stubs:
        """Made at the first call: a channel belongs to the event loop, and to the process, in which it is made."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this client is closed")
            if self._opened is None:
                self._opened = _Stubs(self._open())
            return self._opened

    async def close(self) -> None:
        """Close the connection. Calls that have not ended are cancelled; their readers get a RequestAbortedError."""
        with self._lock:
            self._is_closed = True
            opened = self._opened
        if opened is not None:
            await opened.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def chat(
        self, messages: Messages | generation_pb2.ChatRequest, **options: Unpack[of.ChatCallOptions]
    ) -> generation_pb2.ChatResponse:
        """The assistant's turn, when all choices have ended.

        Args:
            messages: a user's text (with `images`, `audio`, `videos` before it); turns as OpenAI's dictionaries, `ChatMessage`s, or
                `Choice`s of earlier answers; or a finished request.
            options: see `ChatOptions`.
        """
        return await unary(self._call(options), self._stubs.generation.Chat, build.build_chat(messages, options))

    def chat_stream(
        self,
        messages: Messages | generation_pb2.ChatRequest | generation_pb2.ChatStreamRequest,
        **options: Unpack[of.ChatCallOptions],
    ) -> AsyncChatStream:
        """The same as it is generated.

        async with client.chat_stream("Tell a story.") as stream:
            async for text in stream.text_deltas():
                print(text, end="")
        usage = stream.response.usage
        """
        call = self._call(options)
        request = build.build_chat_stream(messages, options)
        return AsyncChatStream(call.start_stream(self._stubs.generation.ChatStream, request), call, ChatAccumulator())

    async def parse(
        self,
        messages: Messages | generation_pb2.ChatRequest,
        response_type: type[ParsedT],
        **options: Unpack[of.ChatCallOptions],
    ) -> Parsed[ParsedT]:
        """The assistant's turn as an object: its text follows the schema of a pydantic model.

            answer = await client.parse("Who won in 1998?", Winner)
            print(answer.value.country)

        Args:
            response_type: the model, or another class with `model_json_schema` and `model_validate_json`.

        Raises:
            IncompleteAnswerError: the text was cut, for example at max_tokens.
        """
        call = self._call(options)
        request = constrained(build.build_chat(messages, options), response_type)
        return parsed(await unary(call, self._stubs.generation.Chat, request), response_type)

    async def complete(
        self, prompt: str | Sequence[int] | generation_pb2.CompleteRequest, **options: Unpack[of.CompleteCallOptions]
    ) -> generation_pb2.CompleteResponse:
        """The continuation of a prompt, when all choices have ended.

        Args:
            prompt: text, token ids, or a finished request.
            options: see `CompleteOptions`.
        """
        return await unary(self._call(options), self._stubs.generation.Complete, build.build_complete(prompt, options))

    def complete_stream(
        self,
        prompt: str | Sequence[int] | generation_pb2.CompleteRequest | generation_pb2.CompleteStreamRequest,
        **options: Unpack[of.CompleteCallOptions],
    ) -> AsyncCompleteStream:
        """The same as it is generated."""
        call = self._call(options)
        request = build.build_complete_stream(prompt, options)
        return AsyncCompleteStream(call.start_stream(self._stubs.generation.CompleteStream, request), call, CompleteAccumulator())

    async def embed(
        self, inputs: PoolingInputs | generation_pb2.EmbedRequest, **options: Unpack[of.EmbedCallOptions]
    ) -> generation_pb2.EmbedResponse:
        """A vector for each input, in their order.

        Args:
            inputs: one input or several: texts, lists of token ids, conversations; or a finished request.
            options: see `EmbedOptions`.
        """
        return await unary(self._call(options), self._stubs.generation.Embed, build.build_embed(inputs, options))

    async def score(
        self,
        queries: PoolingInputs | generation_pb2.ScoreRequest,
        documents: PoolingInputs = (),
        **options: Unpack[of.ScoreCallOptions],
    ) -> generation_pb2.ScoreResponse:
        """How well each document fits its query, in the order of the documents.

        Args:
            queries: one for all documents, or one for each; or a finished request, without `documents`.
            documents: one or several.
            options: see `ScoreOptions`.
        """
        return await unary(self._call(options), self._stubs.generation.Score, build.build_score(queries, documents, options))

    async def rerank(
        self,
        query: PoolingInput,
        documents: Sequence[PoolingInput],
        *,
        top_n: int | None = None,
        **options: Unpack[of.ScoreCallOptions],
    ) -> list[RankedDocument]:
        """The documents by how well they fit the query, the best first: `score`, sorted.

        Args:
            top_n: how many to return. None: all.
        """
        documents = listed(documents, "documents")
        return ranked(await self.score(query, build.documents(documents), **options), documents, top_n)

    async def classify(
        self, inputs: PoolingInputs | generation_pb2.ClassifyRequest, **options: Unpack[of.ClassifyCallOptions]
    ) -> generation_pb2.ClassifyResponse:
        """A value for each label of the model, for each input. Inputs are those of `embed`."""
        return await unary(self._call(options), self._stubs.generation.Classify, build.build_classify(inputs, options))

    async def tokenize(
        self, text: str | preprocess_pb2.TokenizeRequest, **options: Unpack[of.TokenizeCallOptions]
    ) -> preprocess_pb2.TokenizeResponse:
        """Tokens of a text, without a template."""
        return await unary(self._call(options), self._stubs.preprocess.Tokenize, build.build_tokenize(text, options))

    async def detokenize(
        self, token_ids: Sequence[int] | detokenize_pb2.DetokenizeRequest, **options: Unpack[of.DetokenizeCallOptions]
    ) -> detokenize_pb2.DetokenizeResponse:
        """Text of tokens."""
        return await unary(self._call(options), self._stubs.detokenize.Detokenize, build.build_detokenize(token_ids, options))

    async def preprocess(
        self,
        messages: Messages | generation_pb2.ChatRequest | generation_pb2.CompleteRequest | preprocess_pb2.PreprocessRequest,
        **options: Unpack[of.ChatCallOptions],
    ) -> preprocess_pb2.PreprocessResponse:
        """The prompt that the engine would get: text, token ids, placeholders, references to media. Nothing is generated."""
        return await unary(self._call(options), self._stubs.preprocess.Preprocess, build.build_preprocess(messages, options))

    async def list_models(self, **options: Unpack[of.CallOptions]) -> generation_pb2.ListModelsResponse:
        """The models that a request can name."""
        request = generation_pb2.ListModelsRequest()
        return await unary(self._call(options), self._stubs.generation.ListModels, build.finished(request, options))

    async def describe(self, **options: Unpack[of.CallOptions]) -> generation_pb2.GenerationServiceDescribeResponse:
        """Which gateway or frontend this is, and what it serves."""
        request = generation_pb2.GenerationServiceDescribeRequest()
        return await unary(self._call(options), self._stubs.generation.Describe, build.finished(request, options))

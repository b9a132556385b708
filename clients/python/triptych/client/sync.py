"""The client for threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from triptych.accumulators import ChatAccumulator, CompleteAccumulator
from triptych.client.calls import Call, CallDefaults, check_open, check_size
from triptych.client.channels import open_channel
from triptych.client.config import KeepAliveConfig, RetryConfig, TLSConfig
from triptych.client.ranking import RankedDocument, ranked
from triptych.client.streams import ChatStream, CompleteStream
from triptych.requests import build
from triptych.requests import options as of
from triptych.requests.fields import listed
from triptych.requests.types import Messages, PoolingInput
from triptych.v1 import (
    detokenize_pb2,
    detokenize_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    preprocess_pb2,
    preprocess_pb2_grpc,
)

_ResponseT = TypeVar("_ResponseT", bound=Message)


class Client:
    """A client of a Triptych frontend.

        with Client("127.0.0.1:50051") as client:
            response = client.chat("What is this?", images=["photo.jpg"], max_tokens=64)
            print(response.choices[0].text)

    Each method takes either a finished request of `triptych.v1`, or values and keyword options, which have the names of the fields
    of the contracts (docs/contracts.md). All return messages of `triptych.v1`. Options of every call are `timeout_s`, `request_id`
    and `metadata`.

    The client connects at its first call, and again after each loss. Threads may share one. A process that forks must do so before
    the first client is made: neither connections nor the threads of gRPC survive a fork. To start processes later, use
    `multiprocessing` with the start method "spawn", and make a client in each.

    All methods raise:
        TriptychError: the call failed; the class says why (`triptych.errors`). The error of gRPC is its `__cause__`.
        InvalidRequestError: a value that the request cannot hold, before anything is sent.
        OSError: a media file cannot be read.
        TypeError: an unknown keyword.

    Args:
        address: `host:port` of the frontend, or another target of gRPC (`dns:///...`, `unix:...`).
        api_key: sent with each call, as `authorization: Bearer ...`.
        timeout_s: deadline of calls that have none of their own, in seconds. None: no deadline.
        tls: None: no TLS.
        retry: None: the defaults of `RetryConfig`.
        keepalive: None: the defaults of `KeepAliveConfig`.
    """

    def __init__(
        self,
        address: str,
        *,
        api_key: str | None = None,
        timeout_s: float | None = None,
        tls: TLSConfig | None = None,
        retry: RetryConfig | None = None,
        keepalive: KeepAliveConfig | None = None,
    ) -> None:
        self._defaults = CallDefaults(api_key, timeout_s)
        self._channel = open_channel(address, tls, retry, keepalive)
        self._generation = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._preprocess = preprocess_pb2_grpc.PreprocessServiceStub(self._channel)
        self._detokenize = detokenize_pb2_grpc.DetokenizeServiceStub(self._channel)
        self._is_closed = False

    def close(self) -> None:
        """Close the connection. Calls that have not ended are cancelled; their readers get a RequestAbortedError."""
        self._is_closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def chat(
        self, messages: Messages | generation_pb2.ChatRequest, **options: Unpack[of.ChatCallOptions]
    ) -> generation_pb2.ChatResponse:
        """The assistant's turn, when all choices have ended.

        Args:
            messages: a user's text (with `images`, `audio`, `videos` before it); turns as OpenAI's dictionaries, `ChatMessage`s, or
                `Choice`s of earlier answers; or a finished request.
            options: see `ChatOptions`.
        """
        call = self._defaults.take(options)
        return self._unary(self._generation.Chat, build.build_chat(messages, options), call)

    def chat_stream(
        self,
        messages: Messages | generation_pb2.ChatRequest | generation_pb2.ChatStreamRequest,
        **options: Unpack[of.ChatCallOptions],
    ) -> ChatStream:
        """The same as it is generated.

        with client.chat_stream("Tell a story.") as stream:
            for text in stream.text_deltas():
                print(text, end="")
        usage = stream.response.usage
        """
        call = self._defaults.take(options)
        request = build.build_chat_stream(messages, options)
        return ChatStream(self._start(self._generation.ChatStream, request, call), call, ChatAccumulator())

    def complete(
        self, prompt: str | Sequence[int] | generation_pb2.CompleteRequest, **options: Unpack[of.CompleteCallOptions]
    ) -> generation_pb2.CompleteResponse:
        """The continuation of a prompt, when all choices have ended.

        Args:
            prompt: text, token ids, or a finished request.
            options: see `CompleteOptions`.
        """
        call = self._defaults.take(options)
        return self._unary(self._generation.Complete, build.build_complete(prompt, options), call)

    def complete_stream(
        self,
        prompt: str | Sequence[int] | generation_pb2.CompleteRequest | generation_pb2.CompleteStreamRequest,
        **options: Unpack[of.CompleteCallOptions],
    ) -> CompleteStream:
        """The same as it is generated."""
        call = self._defaults.take(options)
        request = build.build_complete_stream(prompt, options)
        return CompleteStream(self._start(self._generation.CompleteStream, request, call), call, CompleteAccumulator())

    def embed(
        self,
        inputs: PoolingInput | Sequence[PoolingInput] | generation_pb2.EmbedRequest,
        **options: Unpack[of.EmbedCallOptions],
    ) -> generation_pb2.EmbedResponse:
        """A vector for each input, in their order.

        Args:
            inputs: one input or several: texts, lists of token ids, conversations; or a finished request.
            options: see `EmbedOptions`.
        """
        call = self._defaults.take(options)
        return self._unary(self._generation.Embed, build.build_embed(inputs, options), call)

    def score(
        self,
        queries: PoolingInput | Sequence[PoolingInput] | generation_pb2.ScoreRequest,
        documents: PoolingInput | Sequence[PoolingInput] = (),
        **options: Unpack[of.ScoreCallOptions],
    ) -> generation_pb2.ScoreResponse:
        """How well each document fits its query, in the order of the documents.

        Args:
            queries: one for all documents, or one for each; or a finished request, without `documents`.
            documents: one or several.
            options: see `ScoreOptions`.
        """
        call = self._defaults.take(options)
        return self._unary(self._generation.Score, build.build_score(queries, documents, options), call)

    def rerank(
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
        return ranked(self.score(query, build.documents(documents), **options), documents, top_n)

    def classify(
        self,
        inputs: PoolingInput | Sequence[PoolingInput] | generation_pb2.ClassifyRequest,
        **options: Unpack[of.ClassifyCallOptions],
    ) -> generation_pb2.ClassifyResponse:
        """A value for each label of the model, for each input. Inputs are those of `embed`."""
        call = self._defaults.take(options)
        return self._unary(self._generation.Classify, build.build_classify(inputs, options), call)

    def tokenize(
        self, text: str | preprocess_pb2.TokenizeRequest, **options: Unpack[of.TokenizeCallOptions]
    ) -> preprocess_pb2.TokenizeResponse:
        """Tokens of a text, without a template."""
        call = self._defaults.take(options)
        return self._unary(self._preprocess.Tokenize, build.build_tokenize(text, options), call)

    def detokenize(
        self, token_ids: Sequence[int] | detokenize_pb2.DetokenizeRequest, **options: Unpack[of.DetokenizeCallOptions]
    ) -> detokenize_pb2.DetokenizeResponse:
        """Text of tokens."""
        call = self._defaults.take(options)
        return self._unary(self._detokenize.Detokenize, build.build_detokenize(token_ids, options), call)

    def preprocess(
        self,
        messages: Messages | generation_pb2.ChatRequest | generation_pb2.CompleteRequest | preprocess_pb2.PreprocessRequest,
        **options: Unpack[of.ChatCallOptions],
    ) -> preprocess_pb2.PreprocessResponse:
        """The prompt that the engine would get: text, token ids, placeholders, references to media. Nothing is generated."""
        call = self._defaults.take(options)
        return self._unary(self._preprocess.Preprocess, build.build_preprocess(messages, options), call)

    def list_models(self, **options: Unpack[of.CallOptions]) -> generation_pb2.ListModelsResponse:
        """The models that a request can name."""
        call = self._defaults.take(options)
        build.refuse(options)
        return self._unary(self._generation.ListModels, generation_pb2.ListModelsRequest(), call)

    def describe(self, **options: Unpack[of.CallOptions]) -> generation_pb2.GenerationServiceDescribeResponse:
        """Which frontend this is, and what it serves."""
        call = self._defaults.take(options)
        build.refuse(options)
        return self._unary(self._generation.Describe, generation_pb2.GenerationServiceDescribeRequest(), call)

    def _unary(self, method: grpc.UnaryUnaryMultiCallable[Any, _ResponseT], request: Message, call: Call) -> _ResponseT:
        check_open(self._is_closed)
        check_size(request)
        try:
            response, rpc = method.with_call(request, timeout=call.timeout_s, metadata=call.metadata)
        except grpc.RpcError as error:
            raise call.error(error) from error
        call.answered(rpc.trailing_metadata())
        return response

    def _start(self, method: Callable[..., Any], request: Message, call: Call) -> Any:
        check_open(self._is_closed)
        check_size(request)
        call.check_stream()
        return method(request, timeout=call.timeout_s, metadata=call.metadata)

"""Starts calls: admission control, checks, the prompt, and one sequence in the engine per choice."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import TypeAlias

from triptych_common.pb import engine_pb2, generation_pb2
from triptych_common.rpc.principal import ANONYMOUS, Principal
from triptych_common.telemetry.logs import request_id_var

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.engines.client import EngineClient
from triptych_frontend.generation.admission import Admission
from triptych_frontend.generation.call import Generation
from triptych_frontend.generation.choice import Choice
from triptych_frontend.generation.media_call import MediaCall
from triptych_frontend.generation.sampling import GenerationParams, check_options, max_output_tokens
from triptych_frontend.output.chain import OutputChains
from triptych_frontend.prompt.preprocess import Preprocessor, Prompt
from triptych_frontend.served_model import ServedModel

Request: TypeAlias = generation_pb2.ChatRequest | generation_pb2.CompleteRequest


class Generator:
    """Starts generations on one engine."""

    def __init__(
        self,
        admission: Admission,
        model: ServedModel,
        preprocessor: Preprocessor,
        client: EngineClient,
        encoders: EncoderClient,
        chains: OutputChains,
    ) -> None:
        self._admission = admission
        self._model = model
        self._preprocessor = preprocessor
        self._client = client
        self._encoders = encoders
        self._chains = chains
        self._eos_token_ids = frozenset(model.info.eos_token_ids)

    async def start(
        self, request: Request, on_news: Callable[[], None], keeps_request: bool = False, principal: Principal = ANONYMOUS
    ) -> Generation:
        """Send a request to the engine. It counts as a live call until the generation ended or was closed. The caller closes it.

        Args:
            on_news: see Generation.
            keeps_request: the caller keeps the request, with the files in it, until the generation ends.
            principal: who asks. Principals share no cache.

        Raises:
            InvalidRequestError: the request is at fault; ContextLengthError when prompt and output do not fit the model's context.
            QueueFullError: too many calls are live, or their media files take too many bytes.
            ServiceUnavailableError: the engine is away, no encoder is there for media, or this frontend drains.
        """
        with contextlib.ExitStack() as place:
            place.enter_context(self._admission.admit())
            self._model.check_name(request.model)
            if isinstance(request, generation_pb2.ChatRequest):
                method, prompt_field, echo = "Chat", "messages", False
                params = check_options(request.options, self._model.info.vocab_size)
                prompt = await self._preprocessor.chat(request, principal)
            else:
                method, prompt_field, echo = "Complete", "prompt", request.echo
                params = check_options(request.options, self._model.info.vocab_size, echo)
                prompt = await self._preprocessor.complete(request, with_offsets=params.wants_prompt_logprobs)
            place.callback(prompt.release)
            choices = [
                Choice(index, prompt, params, self._chains, self._eos_token_ids, echo) for index in range(params.num_choices)
            ]
            requests = self._engine_requests(prompt, params, prompt_field, principal)
            generation = Generation(method, request_id_var.get(), prompt, choices, on_news, place.pop_all().close)
            try:
                if prompt.media:
                    media = await MediaCall.start(self._client, self._encoders, prompt, requests, generation, keeps_request)
                    generation.attach(media, media)
                else:
                    generation.attach(self._client.start(requests, generation))
            except BaseException:
                generation.close()
                raise
            return generation

    def _engine_requests(
        self, prompt: Prompt, params: GenerationParams, prompt_field: str, principal: Principal
    ) -> list[engine_pb2.EngineRequest]:
        num_prompt_tokens = len(prompt.token_ids)
        max_tokens: int | None = max_output_tokens(params.sampling, num_prompt_tokens, self._model.info.max_model_len, prompt_field)
        if not params.sampling.HasField("max_tokens") and not self._model.shortens_context:
            max_tokens = None  # the engine sets it, and knows its KV cache
        # A client may use one request id for several calls; the engine's must be unique.
        call_id = f"{request_id_var.get()}-{secrets.token_hex(8)}"
        return [
            engine_pb2.EngineRequest(
                request_id=f"{call_id}-{index}",
                prompt_token_ids=prompt.token_ids,
                sampling=params.for_choice(index, max_tokens),
                priority=params.priority,
                cache_salt=principal.scoped_salt(params.cache_salt),
            )
            for index in range(params.num_choices)
        ]

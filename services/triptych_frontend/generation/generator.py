"""Starts calls: admission control, checks, the prompt, and one request to an engine."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import TypeAlias

from triptych_common.errors import UnimplementedError
from triptych_common.pb import common_pb2, engine_pb2, generation_pb2
from triptych_common.rpc.principal import ANONYMOUS, Principal
from triptych_common.telemetry.logs import request_id_var

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.engines.router import EngineRouter
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
    """Starts generations."""

    def __init__(
        self,
        admission: Admission,
        model: ServedModel,
        preprocessor: Preprocessor,
        engines: EngineRouter,
        encoders: EncoderClient,
        chains: OutputChains,
    ) -> None:
        self._admission = admission
        self._model = model
        self._preprocessor = preprocessor
        self._engines = engines
        self._encoders = encoders
        self._chains = chains
        self._eos_token_ids = frozenset(model.info.eos_token_ids)

    async def start(
        self,
        request: Request,
        on_news: Callable[[], None],
        *,
        is_final_only: bool = False,
        context: common_pb2.CallContext | None = None,
        keeps_request: bool = False,
    ) -> Generation:
        """Send a request to the engine. It counts as live until the generation has ended or was closed. The caller closes it.

        Args:
            on_news: see Generation.
            is_final_only: answer each choice once, when it has ended.
            context: the caller, and the call's trace. Callers of different tenants share no cache.
            keeps_request: the caller keeps the request, including its files, until the generation ends.

        Raises:
            InvalidRequestError: the request is at fault; ContextLengthError if prompt and output exceed the model's context.
            QueueFullError: too many calls are live, or their media files take too many bytes.
            ServiceUnavailableError: no engine is available, no encoder is available for media, or this frontend drains.
        """
        with contextlib.ExitStack() as place:
            place.enter_context(self._admission.admit())
            self._model.check_name(request.model)
            self._model.check_task(common_pb2.TASK_GENERATE)
            refuse_unserved(request)
            principal = Principal(context.tenant) if context is not None else ANONYMOUS
            if isinstance(request, generation_pb2.ChatRequest):
                method, prompt_field, echo = "Chat", "messages", False
                params = check_options(request.options, self._model.info.vocab_size, is_final_only=is_final_only)
                prompt = await self._preprocessor.chat(request, principal)
            else:
                method, prompt_field, echo = "Complete", "prompt", request.echo
                params = check_options(request.options, self._model.info.vocab_size, echo, is_final_only)
                prompt = await self._preprocessor.complete(request, with_offsets=params.wants_prompt_logprobs)
            place.callback(prompt.release)
            choices = [
                Choice(index, prompt, params, self._chains, self._eos_token_ids, echo) for index in range(params.num_choices)
            ]
            engine_request = self._engine_request(prompt, params, prompt_field, principal, context)
            generation = Generation(method, request_id_var.get(), prompt, choices, on_news, place.pop_all().close)
            try:
                if prompt.media:
                    media = await MediaCall.start(self._engines, self._encoders, prompt, engine_request, generation, keeps_request)
                    generation.attach(media, media)
                else:
                    generation.attach(self._engines.start(engine_request, generation))
            except BaseException:
                generation.close()
                raise
            return generation

    def _engine_request(
        self,
        prompt: Prompt,
        params: GenerationParams,
        prompt_field: str,
        principal: Principal,
        context: common_pb2.CallContext | None,
    ) -> engine_pb2.EngineRequest:
        num_prompt_tokens = len(prompt.token_ids)
        max_tokens: int | None = max_output_tokens(params.sampling, num_prompt_tokens, self._model.info.max_model_len, prompt_field)
        if not params.sampling.HasField("max_tokens") and not self._model.shortens_context:
            max_tokens = None  # the engine sets it, because it knows its KV cache
        return engine_pb2.EngineRequest(
            # A client may use one request id for several calls, but the engine's ids must be unique.
            request_id=f"{request_id_var.get()}-{secrets.token_hex(8)}",
            prompt_token_ids=prompt.token_ids,
            sampling=params.for_engine(max_tokens),
            priority=params.priority,
            cache_salt=principal.scoped_salt(params.cache_salt),
            n=params.num_choices,
            context=context,
        )


def refuse_unserved(request: Request) -> None:
    """Refuse each field of the contract that is not implemented yet; nothing is silently ignored. Raises UnimplementedError."""
    field = ""
    for name in ("constraint", "bad_words", "truncate_prompt_tokens", "best_of", "beam_search"):
        if request.options.bad_words if name == "bad_words" else request.options.HasField(name):
            field = f"options.{name}"
    if request.options.sampling.bad_token_sequences:
        field = "options.sampling.bad_token_sequences"
    if isinstance(request, generation_pb2.ChatRequest):
        for name in ("tools", "tool_choice", "parallel_tool_calls", "reasoning"):
            if getattr(request, name) if name == "tools" else request.HasField(name):
                field = name
        for number, message in enumerate(request.messages):
            for name in ("tool_calls", "reasoning", "tool_call_id"):
                if message.tool_calls if name == "tool_calls" else message.HasField(name):
                    field = f"messages[{number}].{name}"
    if field:
        raise UnimplementedError(f"{field} is not served yet", field=field)

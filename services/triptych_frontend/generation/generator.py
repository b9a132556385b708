"""Starts calls: admission control, preparation, and the requests to engines."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from triptych.v1 import common_pb2, engine_pb2, generation_pb2
from triptych_common.rpc.principal import ANONYMOUS, Principal
from triptych_common.rpc.tracing import call_context, trace_of
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.trace_context import trace_var
from triptych_common.telemetry.tracing import OFF, Tracer

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.engines.router import EngineRouter
from triptych_frontend.generation.admission import Admission
from triptych_frontend.generation.call import Generation
from triptych_frontend.generation.call_trace import CallTrace
from triptych_frontend.generation.choice import Choice
from triptych_frontend.generation.preparation.prepare import CallPreparer, PreparedCall, Request
from triptych_frontend.generation.sampling import max_output_tokens
from triptych_frontend.generation.sequences.beam_search import BeamSearch
from triptych_frontend.generation.sequences.language import detected_language
from triptych_frontend.generation.sequences.media_call import MediaCall
from triptych_frontend.generation.statistics import CallMeter, CallStatistics
from triptych_frontend.output.chain import OutputChains
from triptych_frontend.served_model import ServedModel


@dataclass(eq=False, repr=False)
class Generator:
    """Starts generations.

    Args:
        statistics: where the calls are counted.
    """

    admission: Admission
    model: ServedModel
    preparer: CallPreparer
    engines: EngineRouter
    encoders: EncoderClient
    chains: OutputChains
    statistics: CallStatistics
    tracer: Tracer = OFF

    @cached_property
    def _eos_token_ids(self) -> frozenset[int]:
        return frozenset(self.model.info.eos_token_ids)

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
        is_chat = isinstance(request, generation_pb2.ChatRequest)
        meter = CallMeter(self.statistics, "chat" if is_chat else "complete")
        operation = "chat" if is_chat else "text_completion"
        trace = CallTrace(self.tracer, operation, self.model.info.name, trace_of(context) or trace_var.get())
        try:
            with contextlib.ExitStack() as place:
                principal = Principal(context.tenant) if context is not None else ANONYMOUS
                place.enter_context(self.admission.admit(principal.tenant))
                adapter = self.model.adapter_of(request.model)
                self.model.check_task(common_pb2.TASK_GENERATE)
                call = await self.preparer.prepare(request, principal, is_final_only, place.callback)
                meter.preprocessed(call.prompt.preprocess_s)
                max_tokens = self._max_tokens(call)
                engine_request = self._engine_request(call, max_tokens, principal, trace)
                engine_request.lora = adapter
                generation = self._generation(call, max_tokens, on_news, meter, place)
            await self._submit(generation, call, engine_request, keeps_request)
        except BaseException as error:
            meter.failed(error)
            trace.fail(error)
            raise
        generation.trace = trace
        return generation

    def _generation(
        self, call: PreparedCall, max_tokens: int, on_news: Callable[[], None], meter: CallMeter, place: contextlib.ExitStack
    ) -> Generation:
        """The generation of a call. From now on, its end frees the call's place."""
        prompt, params = call.prompt, call.params
        choices = [
            Choice(index, prompt, params, self.chains, self._eos_token_ids, call.echo, max_tokens)
            for index in range(params.num_choices)
        ]
        num_best = call.num_best if params.is_best_of else None
        request_id, on_end = request_id_var.get(), place.pop_all().close
        return Generation(call.method, request_id, prompt, choices, on_news, on_end, meter, num_best)

    async def _submit(
        self, generation: Generation, call: PreparedCall, request: engine_pb2.EngineRequest, keeps_request: bool
    ) -> None:
        """Send the request to an engine. After an error, the generation has given its place back."""
        try:
            await self.engines.until_there()
            if call.beams is not None:
                sampling, max_tokens = call.params.sampling, self._max_tokens(call)
                ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else self._eos_token_ids)
                generation.attach(BeamSearch(self.engines, request, generation, call.beams, call.num_best, max_tokens, ends))
            elif call.prompt.media:
                if (language := call.prompt.language) is not None:
                    request.prompt_token_ids[language.index] = await detected_language(
                        self.engines, self.encoders, call.prompt, request, language
                    )
                media = await MediaCall.start(self.engines, self.encoders, call.prompt, request, generation, keeps_request)
                generation.attach(media, media)
            else:
                generation.attach(self.engines.start(request, generation))
        except BaseException:
            generation.abandon()
            raise

    def _engine_request(
        self, call: PreparedCall, max_tokens: int, principal: Principal, trace: CallTrace
    ) -> engine_pb2.EngineRequest:
        params = call.params
        in_engine = trace.prepared(call.prompt.preprocess_s, params.num_choices)
        if call.beams is not None and in_engine is not None:
            # A search has a request per beam and step. Their spans would cost more than they show.
            in_engine = replace(in_engine, is_sampled=False)
        # Else the engine sets it, because it knows its KV cache.
        is_set = params.sampling.HasField("max_tokens") or self.model.shortens_context
        return engine_pb2.EngineRequest(
            # A client may use one request id for several calls, but the engine's ids must be unique.
            request_id=f"{request_id_var.get()}-{secrets.token_hex(8)}",
            prompt_token_ids=call.prompt.token_ids,
            sampling=params.for_engine(max_tokens if is_set else None),
            priority=params.options.priority,
            cache_salt=principal.scoped_salt(params.options.cache_salt),
            affinity_key=params.options.affinity_key or None,
            n=params.num_choices,
            context=call_context(principal.tenant, in_engine),
            constraint=call.constraint,
        )

    def _max_tokens(self, call: PreparedCall) -> int:
        num_prompt_tokens, params = len(call.prompt.token_ids), call.params
        limit, is_clamped = self.model.info.max_model_len, params.options.clamp_max_tokens
        return max_output_tokens(params.sampling, num_prompt_tokens, limit, call.prompt_field, is_clamped)

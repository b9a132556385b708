"""Starts calls: admission control, preparation, and the requests to engines."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace

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
from triptych_frontend.generation.preparation.search import BeamOptions
from triptych_frontend.generation.sampling import max_output_tokens
from triptych_frontend.generation.sequences.beam_search import BeamSearch
from triptych_frontend.generation.sequences.media_call import MediaCall
from triptych_frontend.generation.sequences.text_call import TextCall
from triptych_frontend.generation.statistics import CallMeter, CallStatistics
from triptych_frontend.output.chain import OutputChains
from triptych_frontend.served_model import ServedModel


class Generator:
    """Starts generations.

    Args:
        statistics: where the calls are counted.
    """

    def __init__(
        self,
        admission: Admission,
        model: ServedModel,
        preparer: CallPreparer,
        engines: EngineRouter,
        encoders: EncoderClient,
        chains: OutputChains,
        statistics: CallStatistics,
        tracer: Tracer = OFF,
    ) -> None:
        self._admission = admission
        self._model = model
        self._preparer = preparer
        self._engines = engines
        self._encoders = encoders
        self._chains = chains
        self._statistics = statistics
        self._tracer = tracer
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
        is_chat = isinstance(request, generation_pb2.ChatRequest)
        meter = CallMeter(self._statistics, "chat" if is_chat else "complete")
        operation = "chat" if is_chat else "text_completion"
        trace = CallTrace(self._tracer, operation, self._model.info.name, trace_of(context) or trace_var.get())
        try:
            return await self._start(request, on_news, meter, trace, is_final_only, context, keeps_request)
        except BaseException as error:
            meter.failed(error)
            trace.fail(error)
            raise

    async def _start(
        self,
        request: Request,
        on_news: Callable[[], None],
        meter: CallMeter,
        trace: CallTrace,
        is_final_only: bool,
        context: common_pb2.CallContext | None,
        keeps_request: bool,
    ) -> Generation:
        with contextlib.ExitStack() as place:
            principal = Principal(context.tenant) if context is not None else ANONYMOUS
            place.enter_context(self._admission.admit(principal.tenant))
            self._model.check_name(request.model)
            self._model.check_task(common_pb2.TASK_GENERATE)
            call = await self._preparer.prepare(request, principal, is_final_only, place.callback)
            prompt, params = call.prompt, call.params
            meter.preprocessed(prompt.preprocess_s)
            max_tokens = self._max_tokens(call)
            choices = [
                Choice(index, prompt, params, self._chains, self._eos_token_ids, call.echo, max_tokens)
                for index in range(params.num_choices)
            ]
            in_engine = trace.prepared(prompt.preprocess_s, params.num_choices)
            if call.beams is not None and in_engine is not None:
                # A search has a request per beam and step. Their spans would cost more than they show.
                in_engine = replace(in_engine, is_sampled=False)
            engine_request = self._engine_request(call, max_tokens, principal, call_context(principal.tenant, in_engine))
            num_best = call.num_best if params.is_best_of else None
            generation = Generation(
                call.method, request_id_var.get(), prompt, choices, on_news, place.pop_all().close, meter, num_best
            )
            try:
                await self._engines.until_there()
                if call.beams is not None:
                    generation.attach(self._beam_search(call, call.beams, engine_request, generation))
                elif prompt.media:
                    media = await MediaCall.start(self._engines, self._encoders, prompt, engine_request, generation, keeps_request)
                    generation.attach(media, media)
                else:
                    generation.attach(TextCall(self._engines, engine_request, generation))
            except BaseException:
                generation.abandon()
                raise
            generation.trace = trace
            return generation

    def _engine_request(
        self, call: PreparedCall, max_tokens: int, principal: Principal, context: common_pb2.CallContext
    ) -> engine_pb2.EngineRequest:
        params = call.params
        # Else the engine sets it, because it knows its KV cache.
        is_set = params.sampling.HasField("max_tokens") or self._model.shortens_context
        return engine_pb2.EngineRequest(
            # A client may use one request id for several calls, but the engine's ids must be unique.
            request_id=f"{request_id_var.get()}-{secrets.token_hex(8)}",
            prompt_token_ids=call.prompt.token_ids,
            sampling=params.for_engine(max_tokens if is_set else None),
            priority=params.priority,
            cache_salt=principal.scoped_salt(params.cache_salt),
            n=params.num_choices,
            context=context,
            constraint=call.constraint,
        )

    def _max_tokens(self, call: PreparedCall) -> int:
        num_prompt_tokens, max_model_len = len(call.prompt.token_ids), self._model.info.max_model_len
        params = call.params
        return max_output_tokens(
            params.sampling, num_prompt_tokens, max_model_len, call.prompt_field, is_clamped=params.clamps_max_tokens
        )

    def _beam_search(
        self, call: PreparedCall, beams: BeamOptions, request: engine_pb2.EngineRequest, generation: Generation
    ) -> BeamSearch:
        sampling = call.params.sampling
        stop_token_ids = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else self._eos_token_ids)
        search = BeamSearch(self._engines, request, generation, beams, call.num_best, self._max_tokens(call), stop_token_ids)
        search.start()
        return search

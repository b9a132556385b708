"""From a request to what an engine needs: its checked options, its prompt, and the form of its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.rpc.principal import Principal

from triptych_frontend.conversation.answer_format import AnswerFormat, AnswerFormats
from triptych_frontend.errors import refusal
from triptych_frontend.generation.preparation.options import (
    BeamOptions,
    ban_words,
    check_affinity_key,
    check_bad_words,
    check_beam_search,
    check_best_of,
    kept_tokens,
)
from triptych_frontend.generation.sampling import GenerationParams, check_options
from triptych_frontend.prompt.preprocess import Preprocessor, Prompt
from triptych_frontend.served_model import ServedModel
from triptych_frontend.tokens.tokenizer import Tokenizer

Request: TypeAlias = generation_pb2.ChatRequest | generation_pb2.CompleteRequest


@dataclass(frozen=True)
class PreparedCall:
    """A request that can be sent to an engine."""

    #: The name of the RPC, and the field that holds the prompt.
    method: str
    prompt_field: str
    #: Begin each choice with the prompt's text.
    echo: bool
    prompt: Prompt
    params: GenerationParams
    #: Choices to send.
    num_best: int
    constraint: common_pb2.Constraint | None
    beams: BeamOptions | None


@dataclass(eq=False, repr=False)
class CallPreparer:
    """Prepares calls.

    Args:
        defaults: sampling parameters of requests that do not set them.
    """

    model: ServedModel
    tokenizer: Tokenizer
    preprocessor: Preprocessor
    formats: AnswerFormats
    defaults: common_pb2.SamplingParams

    async def prepare(
        self, request: Request, principal: Principal, is_final_only: bool, on_exit: Callable[[Callable[[], None]], object]
    ) -> PreparedCall:
        """Check the options, then render and tokenize the prompt.

        Args:
            on_exit: takes what must be called when the call ends, or fails here.

        Raises:
            InvalidRequestError: the request is at fault.
            QueueFullError, ServiceUnavailableError: see `MediaPreparer.prepare`.
        """
        options = generation_pb2.GenerationOptions()
        options.CopyFrom(request.options)
        words = check_bad_words(options.bad_words)
        check_affinity_key(options.affinity_key)
        is_chat = isinstance(request, generation_pb2.ChatRequest)
        echo = isinstance(request, generation_pb2.CompleteRequest) and request.echo
        num_choices = options.n if options.HasField("n") else 1
        # Beams know no other parameters than the client's.
        beams = check_beam_search(options, num_choices, echo, is_final_only)
        best_of = check_best_of(options, num_choices, is_final_only)
        options.sampling.CopyFrom(self.defaults)
        options.sampling.MergeFrom(request.options.sampling)
        params = check_options(options, self.model.info.vocab_size, echo, is_final_only, best_of)
        if self.preprocessor.speech is not None:
            self.preprocessor.speech.restrict(params.sampling)
        if words:
            await self.preprocessor.run(lambda: ban_words(words, self.tokenizer, params.sampling))
        if isinstance(request, generation_pb2.ChatRequest):
            prompt = await self.preprocessor.chat(
                request, principal, with_offsets=params.wants_prompt_logprobs, max_model_len=self.model.info.max_model_len
            )
            on_exit(prompt.release)
            answer = await self._answer(request, prompt)
            params = params.reading(answer.parser, answer.limit)
            if answer.prompt_end:
                token_ids = [*prompt.token_ids, *answer.prompt_end]
                prompt = await self.preprocessor.of_tokens(prompt, token_ids, with_offsets=params.wants_prompt_logprobs)
        else:
            prompt = await self.preprocessor.complete(request, principal, with_offsets=params.wants_prompt_logprobs)
            on_exit(prompt.release)
            if prompt.stop_token_ids and not params.sampling.ignore_eos:
                params.sampling.stop_token_ids.extend(set(prompt.stop_token_ids) - set(params.sampling.stop_token_ids))
            answer = AnswerFormat(None, options.constraint if options.HasField("constraint") else None)
        if (num_kept := kept_tokens(options, prompt, self.model.info.max_model_len)) is not None:
            token_ids = prompt.token_ids[-num_kept:]
            prompt = await self.preprocessor.of_tokens(prompt, token_ids, with_offsets=params.wants_prompt_logprobs)
        if answer.constraint is not None:
            await self._check_constraint(answer.constraint, is_own=options.HasField("constraint"), has_beams=beams is not None)
        if beams is not None and params.reasoning is not None:
            raise refusal("reasoning.max_tokens", "cannot be used in a beam search")
        if beams is not None and prompt.media:
            raise refusal("options.beam_search", "is not for prompts with media")
        method, field = ("Chat", "messages") if is_chat else ("Complete", "prompt")
        return PreparedCall(method, field, echo, prompt, params, num_choices, answer.constraint, beams)

    async def _answer(self, request: generation_pb2.ChatRequest, prompt: Prompt) -> AnswerFormat:
        if not request.tools:
            return self.formats.of(request, prompt.tools, prompt.text)
        # Schemas may be large.
        return await self.preprocessor.run(lambda: self.formats.of(request, prompt.tools, prompt.text))

    async def _check_constraint(self, constraint: common_pb2.Constraint, is_own: bool, has_beams: bool) -> None:
        if has_beams:
            raise InvalidRequestError("a forced or strict tool call cannot be used in a beam search", field="options.beam_search")
        try:
            await self.preprocessor.constraints.check(constraint)
        except InvalidRequestError as error:
            if is_own:
                raise
            raise InvalidRequestError(f"the tools cannot be honoured together: {error.message}", field="tools") from error

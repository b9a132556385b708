"""One choice of a generation: turns the engine's outputs into deltas for the client."""

from __future__ import annotations

from collections.abc import Sequence, Set

from triptych.v1 import common_pb2, engine_pb2, generation_pb2

from triptych_frontend.conversation.reasoning import ReasoningLimit
from triptych_frontend.generation.sampling import GenerationParams
from triptych_frontend.output.chain import OutputChains
from triptych_frontend.output.delta import DeltaBuilder, prompt_logprobs, token_logprob
from triptych_frontend.prompt.preprocess import Prompt


class Choice:
    """Feeds output tokens to the output chain, and collects the next delta.

    Args:
        eos_token_ids: the model's own end-of-sequence tokens. Any other stop token is reported as the reason for the end.
        echo: begin the text with the prompt's text.
        max_tokens: most output tokens. The engine ends the sequence; only a reasoning that is ended is measured by it.
    """

    def __init__(
        self,
        index: int,
        prompt: Prompt,
        params: GenerationParams,
        chains: OutputChains,
        eos_token_ids: Set[int],
        echo: bool,
        max_tokens: int,
    ) -> None:
        self._prompt = prompt
        # Of `best_of` choices, any may become the first.
        is_first = index == 0 or params.is_best_of
        #: Where each prompt token starts in the prompt's text, until the prompt's log probabilities were sent. None if they were
        #: not requested.
        self._unsent_offsets = prompt.offsets if params.wants_prompt_logprobs and (echo or is_first) else None
        self._echo = echo
        self._params = params
        #: All output is sent together, when the choice has ended.
        self.is_final_only = params.is_final_only
        self._token_texts = chains.token_texts
        self._eos_token_ids = eos_token_ids
        self._chain = chains.start(prompt.token_ids, params.output)
        self._new = DeltaBuilder(index)
        self._new.delta.prompt_tokens = len(prompt.token_ids)
        #: Output tokens that belong to the choice, and the sum of their log probabilities where these are known.
        self.num_tokens = 0
        self._logprob = 0.0
        self._max_tokens = max_tokens
        #: Its reasoning was ended because it took too long. The engine has not ended that sequence yet.
        self._is_cut = False
        #: The last output of the sequence whose reasoning was ended.
        self._before: engine_pb2.SequenceOutput | None = None
        #: Output tokens, if the reasoning has a limit.
        self.token_ids: list[int] = []
        #: The engine's last output of the choice; None while it runs.
        self.last: engine_pb2.SequenceOutput | None = None
        #: Why the choice ended, as reported to the client.
        self.finish_reason = common_pb2.FINISH_REASON_UNSPECIFIED
        #: It needs no more tokens of this sequence, e.g. because a stop string was found. Further tokens are ignored.
        self.has_stopped = False
        if echo:
            self._chain.num_chars = len(prompt.text)
            self._new.add_text(prompt.text)
            if params.return_token_ids:
                self._new.delta.token_ids.extend(prompt.token_ids)

    @property
    def is_finished(self) -> bool:
        return self.last is not None

    def feed(self, output: engine_pb2.SequenceOutput) -> None:
        """Take an output of the engine. It may contain the tokens of several steps.

        If it is the last output of a sequence, but the choice is not finished, the choice must be continued behind its `token_ids`.
        """
        # A prompt of one token has no entries in the engine's output, because nothing precedes that token.
        if self._unsent_offsets and (output.prompt_logprobs or len(self._unsent_offsets) == 1):
            entries = prompt_logprobs(self._prompt.token_ids, output.prompt_logprobs, self._unsent_offsets, self._token_texts)
            (self._new.delta.logprobs if self._echo else self._new.delta.prompt_logprobs).extend(entries)
            self._new.has_news = True
            self._unsent_offsets = None
        if not self.has_stopped:
            self._feed_tokens(output)
        if output.finish_reason:
            if self._is_cut and self.num_tokens < self._max_tokens:
                self._before = output if self._before is None else _joined_costs(self._before, output)
                self._is_cut = self.has_stopped = False
            else:
                self._finish(output)

    @property
    def mean_logprob(self) -> float:
        """Of its tokens. Only for `best_of`."""
        return self._logprob / max(self.num_tokens, 1)

    @property
    def num_reasoning_tokens(self) -> int:
        """Output tokens of the reasoning so far."""
        num_tokens, limit = self._chain.num_reasoning_tokens, self._params.reasoning
        # The parser counts all but one token of a marker.
        return num_tokens if limit is None else min(num_tokens, limit.max_tokens)

    def take(self) -> Sequence[generation_pb2.ChoiceDelta]:
        """The new output since the last call. Empty if there is none, or if it must be sent only at the end."""
        if not self._new.has_news or (self.is_final_only and self.last is None):
            return ()
        return self._new.take()

    def _feed_tokens(self, output: engine_pb2.SequenceOutput) -> None:
        params = self._params
        # A stop token is the last token. It counts as an output token, but it is not part of the text unless the client asked for
        # it.
        ends_with_stop_token = output.HasField("stop_token_id") and not params.output.include_stop
        num_text_tokens = len(output.token_ids) - ends_with_stop_token
        has_logprobs, limit = params.wants_logprobs or params.is_best_of, params.reasoning
        is_plain = not (has_logprobs or params.return_token_ids) and limit is None
        for position, token_id in enumerate(output.token_ids):
            if is_plain:  # as `_add_token`, without the call
                self.num_tokens += 1
                if position < num_text_tokens and (events := self._chain.feed(token_id)):
                    self._new.add(events)
                    self.has_stopped = self._new.has_stopped
            else:
                self._add_token(token_id, position < num_text_tokens, output.logprobs[position] if has_logprobs else None)
            if self.has_stopped:
                return
            if limit is not None:
                is_last = output.finish_reason and position == len(output.token_ids) - 1
                if not is_last and self._chain.has_reasoned(limit.max_tokens):
                    self._end_reasoning(limit)
                    return

    def _add_token(self, token_id: int, is_text: bool, logprobs: engine_pb2.TokenLogprobs | None) -> None:
        params, new = self._params, self._new
        self.num_tokens += 1
        offset = self._chain.num_chars
        if is_text and (events := self._chain.feed(token_id)):
            new.add(events)
            self.has_stopped = new.has_stopped
        if params.return_token_ids:
            new.delta.token_ids.append(token_id)
            new.has_news = True
        if params.reasoning is not None:
            self.token_ids.append(token_id)
        if logprobs is not None:
            self._logprob += logprobs.logprob
            if params.wants_logprobs:
                new.delta.logprobs.append(token_logprob(logprobs, self._token_texts, offset))
                new.has_news = True

    def _end_reasoning(self, limit: ReasoningLimit) -> None:
        """Write what ends the reasoning, as far as it fits into max_tokens. Their log probability is 0: they are certain."""
        for token_id in limit.end_token_ids[: self._max_tokens - self.num_tokens]:
            self._add_token(token_id, True, engine_pb2.TokenLogprobs(token_id=token_id, logprob=0, rank=1))
            if self.has_stopped:
                return
        self._is_cut = self.has_stopped = True

    def _finish(self, output: engine_pb2.SequenceOutput) -> None:
        self.last = output if self._before is None else _joined_costs(self._before, output)
        self._new.add(self._chain.finish())
        self.has_stopped = self._new.has_stopped
        is_own = not output.HasField("stop_token_id") or output.stop_token_id in self._eos_token_ids
        reason = common_pb2.FINISH_REASON_LENGTH if self._is_cut else output.finish_reason
        self.finish_reason = self._new.finish(reason, None if is_own or self._is_cut else output.stop_token_id)


def _joined_costs(first: engine_pb2.SequenceOutput, last: engine_pb2.SequenceOutput) -> engine_pb2.SequenceOutput:
    """The last output of a sequence that went on in a second request, with what both requests cost.

    The second request finds prompt and media in the prefix cache, so what is said about these comes from the first one.
    """
    joined = engine_pb2.SequenceOutput()
    joined.CopyFrom(last)
    joined.usage.CopyFrom(first.usage)
    del joined.media[:]
    joined.media.extend(first.media)
    joined.timings.CopyFrom(first.timings)
    joined.timings.decode_s += last.timings.queue_s + last.timings.prefill_s + last.timings.decode_s
    joined.timings.num_preemptions += last.timings.num_preemptions
    return joined

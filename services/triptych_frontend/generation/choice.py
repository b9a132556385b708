"""One choice of a generation: turns the engine's outputs into deltas for the client."""

from __future__ import annotations

from collections.abc import Sequence, Set

from triptych_common.pb import common_pb2, engine_pb2, generation_pb2

from triptych_frontend.generation.sampling import GenerationParams
from triptych_frontend.output.chain import OutputChains
from triptych_frontend.output.delta import DeltaBuilder
from triptych_frontend.output.logprobs import prompt_logprobs, token_logprob
from triptych_frontend.prompt.preprocess import Prompt


class Choice:
    """Feeds output tokens to the output chain, and collects the next delta.

    Args:
        eos_token_ids: the model's own end-of-sequence tokens. Any other stop token is reported as the reason for the end.
        echo: begin the text with the prompt's text.
    """

    def __init__(
        self,
        index: int,
        prompt: Prompt,
        params: GenerationParams,
        chains: OutputChains,
        eos_token_ids: Set[int],
        echo: bool,
    ) -> None:
        self._prompt = prompt
        # Of `best_of` choices, any may become the first.
        is_first = index == 0 or params.is_best_of
        #: Where each prompt token starts in the prompt's text, until the prompt's log probabilities were sent. None if they were
        #: not requested.
        self._unsent_offsets = prompt.offsets if params.wants_prompt_logprobs and (echo or is_first) else None
        self._echo = echo
        self._params = params
        self._token_texts = chains.token_texts
        self._eos_token_ids = eos_token_ids
        self._chain = chains.start(prompt.token_ids, params.output)
        self._new = DeltaBuilder(index)
        self._new.delta.prompt_tokens = len(prompt.token_ids)
        #: Output tokens that belong to the choice, and, for `best_of`, the sum of their log probabilities.
        self.num_tokens = 0
        self._logprob = 0.0
        #: The engine's last output of the sequence; None while the sequence runs.
        self.last: engine_pb2.SequenceOutput | None = None
        #: Why the choice ended, as reported to the client.
        self.finish_reason = common_pb2.FINISH_REASON_UNSPECIFIED
        #: It needs no more tokens, e.g. because a stop string was found. Further tokens are ignored.
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
        """Take an output of the engine. It may contain the tokens of several steps."""
        # A prompt of one token has no entries in the engine's output, because nothing precedes that token.
        if self._unsent_offsets and (output.prompt_logprobs or len(self._unsent_offsets) == 1):
            entries = prompt_logprobs(self._prompt.token_ids, output.prompt_logprobs, self._unsent_offsets, self._token_texts)
            (self._new.delta.logprobs if self._echo else self._new.delta.prompt_logprobs).extend(entries)
            self._new.has_news = True
            self._unsent_offsets = None
        if not self.has_stopped:
            self._feed_tokens(output)
        if output.finish_reason:
            self._finish(output)

    @property
    def mean_logprob(self) -> float:
        """Of its tokens. Only for `best_of`."""
        return self._logprob / max(self.num_tokens, 1)

    @property
    def num_reasoning_tokens(self) -> int:
        """Output tokens of the reasoning so far."""
        return self._chain.num_reasoning_tokens

    def take(self) -> Sequence[generation_pb2.ChoiceDelta]:
        """The new output since the last call. Empty if there is none, or if it must be sent only at the end."""
        if not self._new.has_news or (self._params.is_final_only and self.last is None):
            return ()
        return self._new.take()

    def _feed_tokens(self, output: engine_pb2.SequenceOutput) -> None:
        params, chain, new = self._params, self._chain, self._new
        # A stop token is the last token. It counts as an output token, but it is not part of the text unless the client asked for
        # it.
        ends_with_stop_token = output.HasField("stop_token_id") and not params.output.include_stop
        num_text_tokens = len(output.token_ids) - ends_with_stop_token
        for position, token_id in enumerate(output.token_ids):
            self.num_tokens += 1
            offset = chain.num_chars
            if position < num_text_tokens and (events := chain.feed(token_id)):
                new.add(events)
                self.has_stopped = new.has_stopped
            if params.return_token_ids:
                new.delta.token_ids.append(token_id)
                new.has_news = True
            if params.wants_logprobs:
                new.delta.logprobs.append(token_logprob(output.logprobs[position], self._token_texts, offset))
                new.has_news = True
            if params.is_best_of:
                self._logprob += output.logprobs[position].logprob
            if self.has_stopped:
                return

    def _finish(self, output: engine_pb2.SequenceOutput) -> None:
        self.last = output
        self._new.add(self._chain.finish())
        self.has_stopped = self._new.has_stopped
        is_own = not output.HasField("stop_token_id") or output.stop_token_id in self._eos_token_ids
        self.finish_reason = self._new.finish(output.finish_reason, None if is_own else output.stop_token_id)

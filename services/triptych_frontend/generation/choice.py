"""One choice of a generation: the engine's tokens go in, text comes out."""

from __future__ import annotations

from collections.abc import Set

from triptych_common.pb import common_pb2, engine_pb2, generation_pb2

from triptych_frontend.generation.sampling import GenerationParams
from triptych_frontend.output.detokenizer import IncrementalDetokenizer
from triptych_frontend.output.logprobs import prompt_logprobs, token_logprob
from triptych_frontend.output.stop_strings import StopStringMatcher
from triptych_frontend.prompt.preprocess import Prompt
from triptych_frontend.prompt.tokenizer import Tokenizer


class Choice:
    """Detokenizes, finds stop strings, and collects what is to be sent next.

    Args:
        eos_token_ids: the model's own end-of-sequence tokens; other stop tokens are reported as what ended the choice.
        echo: begin the text with the prompt's.
    """

    def __init__(
        self,
        index: int,
        prompt: Prompt,
        params: GenerationParams,
        tokenizer: Tokenizer,
        eos_token_ids: Set[int],
        echo: bool,
    ) -> None:
        self._index = index
        self._prompt = prompt
        #: Where the prompt's tokens start in its text, until its log probabilities were reported; None when nobody asked.
        self._owed_offsets = prompt.offsets if params.wants_prompt_logprobs else None
        self._params = params
        self._token_texts = tokenizer.token_texts
        self._eos_token_ids = eos_token_ids
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt.token_ids, params.skip_special_tokens)
        self._matcher = StopStringMatcher(params.stop_automaton, params.include_stop) if params.stop else None
        #: Output tokens that are part of the choice.
        self.num_tokens = 0
        #: The engine's last words on the sequence; None while it runs.
        self.last: engine_pb2.SequenceOutput | None = None
        #: Why it ended, as the client is told: what the engine was aborted for at a stop string is a stop.
        self.finish_reason = common_pb2.FINISH_REASON_UNSPECIFIED
        # What was not sent yet.
        self._text: list[str] = []
        self._delta = generation_pb2.ChoiceDelta(index=index)
        self._has_news = False
        #: Length of the choice's text, with what is held back, in characters.
        self._num_chars = 0
        if echo:
            self._num_chars = len(prompt.text)
            self._text.append(prompt.text)
            self._has_news = True
            if params.return_token_ids:
                self._delta.token_ids.extend(prompt.token_ids)

    @property
    def is_finished(self) -> bool:
        return self.last is not None

    @property
    def has_matched_stop(self) -> bool:
        """A stop string was found: more tokens are of no use."""
        return self._matcher is not None and self._matcher.matched is not None

    def feed(self, output: engine_pb2.SequenceOutput) -> None:
        """Take what the engine brought, several steps' worth at once where the reader was slow."""
        # A prompt of one token has no entries in the engine's output: nothing stands before its only token.
        if self._owed_offsets and (output.prompt_logprobs or len(self._owed_offsets) == 1):
            entries = prompt_logprobs(self._prompt.token_ids, output.prompt_logprobs, self._owed_offsets, self._token_texts)
            self._delta.logprobs.extend(entries)
            self._owed_offsets = None
        if not self.has_matched_stop:
            self._feed_tokens(output)
        if output.finish_reason:
            self._finish(output)

    def take(self) -> generation_pb2.ChoiceDelta | None:
        """What is new since the last call; None when that is nothing, or when it is to be sent at the end."""
        if not self._has_news or (self._params.is_final_only and not self.is_finished):
            return None
        delta, self._delta = self._delta, generation_pb2.ChoiceDelta(index=self._index)
        delta.text = "".join(self._text)
        self._text.clear()
        self._has_news = False
        return delta

    def _feed_tokens(self, output: engine_pb2.SequenceOutput) -> None:
        params = self._params
        # A stop token is the last one, counts as a token, and is no text unless that was asked for.
        ends_with_stop_token = output.HasField("stop_token_id") and not params.include_stop
        num_text_tokens = len(output.token_ids) - ends_with_stop_token
        for position, token_id in enumerate(output.token_ids):
            self.num_tokens += 1
            offset = self._num_chars
            if position < num_text_tokens:
                self._add_text(self._detokenizer.feed(token_id))
            if params.return_token_ids:
                self._delta.token_ids.append(token_id)
                self._has_news = True
            if params.wants_logprobs:
                self._delta.logprobs.append(token_logprob(output.logprobs[position], self._token_texts, offset))
                self._has_news = True
            if self.has_matched_stop:
                return

    def _add_text(self, text: str) -> None:
        self._num_chars += len(text)
        if self._matcher is not None and self.num_tokens > self._params.sampling.min_tokens:
            text = self._matcher.feed(text)
        if text:
            self._text.append(text)
            self._has_news = True

    def _finish(self, output: engine_pb2.SequenceOutput) -> None:
        self.last = output
        self._has_news = True
        if not self.has_matched_stop:
            self._add_text(self._detokenizer.flush())
        self.finish_reason = common_pb2.FINISH_REASON_STOP if self.has_matched_stop else output.finish_reason
        self._delta.finish_reason = self.finish_reason
        if self._matcher is not None and self._matcher.matched is not None:
            self._delta.stop_text = self._matcher.matched
            return
        if self._matcher is not None:
            self._text.append(self._matcher.flush())
        if output.HasField("stop_token_id") and output.stop_token_id not in self._eos_token_ids:
            self._delta.stop_token_id = output.stop_token_id

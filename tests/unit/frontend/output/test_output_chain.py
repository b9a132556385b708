"""The output chain as a whole: tokens in, events out, with stages behind the stop strings."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from support.builders.tokenizer import byte_level_tokenizer
from support.drivers.output import merged
from transformers import PreTrainedTokenizerFast
from triptych_frontend.conversation.events import Event, Stopped, Text
from triptych_frontend.conversation.text_matcher import TextMatcher
from triptych_frontend.output.chain import OutputChain, OutputChains, OutputOptions, StopStrings
from triptych_frontend.tokens.detokenizer import IncrementalDetokenizer
from triptych_frontend.tokens.tokenizer import Tokenizer

TOKENIZER = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer()))
CHAINS = OutputChains(TOKENIZER)


@dataclass
class Loud:
    """A stage after the stop strings: writes in capitals, and holds back a last full stop."""

    held: str = ""

    def feed(self, event: Event) -> list[Event]:
        if not isinstance(event, Text):
            return [event]
        text = self.held + event.text
        certain = text.rstrip(".")
        self.held = text[len(certain) :]
        return [Text(certain.upper(), event.num_tokens)] if certain else []

    def finish(self) -> list[Event]:
        return [Text(self.held, 0)] if self.held else []


def run(chain: OutputChain, token_ids: list[int]) -> list[Event]:
    return [*(event for token_id in token_ids for event in chain.feed(token_id)), *chain.finish()]


@given(st.text("ab é😀.\n", max_size=20), st.booleans())
def test_the_text_of_all_tokens_comes_out(text: str, has_stop: bool) -> None:
    token_ids = TOKENIZER.encode(text, add_special_tokens=False)
    chain = CHAINS.start([], OutputOptions(stop=("never",) if has_stop else ()))
    assert merged(run(chain, token_ids)) == ([text] if text else [])
    assert chain.num_chars == len(text)


@given(st.text("abE. ", max_size=30), st.sampled_from(["E.", "bE", "."]))
def test_later_stages_get_the_text_before_a_stop_string_and_its_end(text: str, stop: str) -> None:
    token_ids = TOKENIZER.encode(text, add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    events = merged(run(OutputChain(detokenizer, [StopStrings(TextMatcher([stop])), Loud()]), token_ids))
    before, found, _ = text.partition(stop)
    assert "".join(event for event in events if isinstance(event, str)) == before.upper()
    assert [event for event in events if isinstance(event, Stopped)] == ([Stopped(stop)] if found else [])


def test_bytes_of_no_character_come_out_at_the_end() -> None:
    token_ids = TOKENIZER.encode("é", add_special_tokens=False)[:-1]
    chain = CHAINS.start([], OutputOptions(stop=("\ufffd",)))
    assert run(chain, token_ids) == [Stopped("\ufffd")]

"""Prompts that no chat template renders: text or token ids, with placeholders for media."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from triptych.errors import InvalidRequestError, UnimplementedError
from triptych.v1 import common_pb2

from triptych_frontend.errors import refusal
from triptych_frontend.media.item import MODALITY_NAMES, Expansion
from triptych_frontend.media.processors.placeholders import placeholder_ranges
from triptych_frontend.tokens.detokenizer import IncrementalDetokenizer
from triptych_frontend.tokens.tokenizer import Tokenizer
from triptych_frontend.tokens.user_text import control_token_pattern


class Place(NamedTuple):
    """A placeholder in a prompt, before it is expanded."""

    #: In characters of a text, or in tokens.
    start: int
    end: int
    modality: common_pb2.Modality


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt's tokens, with its placeholders expanded."""

    #: As the client gave it: a text, or the text of its token ids; or as the template rendered it. Placeholders are not expanded.
    text: str
    token_ids: list[int]
    #: Where each token's text starts in `text`, in characters. An item's tokens start at its placeholder. None unless requested.
    offsets: list[int] | None = None
    #: The positions of the media's embeddings, by offset.
    placeholders: list[common_pb2.PlaceholderRange] = field(default_factory=list)
    #: Tokens that end its answers, beside the model's own and the client's.
    stop_token_ids: tuple[int, ...] = ()


class RawPrompts:
    """Finds placeholders in prompts, expands them, and tokenizes. Thread-safe.

    Args:
        placeholders: modality -> the text for an item before it is expanded. Empty for a text-only model.
        embed_token_ids: tokens whose embeddings come from an encoder.
    """

    def __init__(
        self, tokenizer: Tokenizer, placeholders: Mapping[common_pb2.Modality, str], embed_token_ids: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._placeholders = placeholders
        self._embed_token_ids = embed_token_ids
        self._pattern = control_token_pattern(placeholders.values())
        self._modality_of = {text: modality for modality, text in placeholders.items()}
        found = {modality: tokenizer.encode_inner(text) for modality, text in placeholders.items()}
        #: The placeholders that are one token.
        self.token_ids = {ids[0]: modality for modality, ids in found.items() if len(ids) == 1}

    def places(self, prompt: str | list[int], modalities: Sequence[common_pb2.Modality]) -> list[Place]:
        """The placeholders of a prompt with media, in order.

        Args:
            modalities: of the media. If the model does not take one of them, nothing is found: `MediaPreparer.prepare` refuses it.

        Raises:
            InvalidRequestError: of a modality, the prompt has more or fewer placeholders than there are items.
            UnimplementedError: the prompt is token ids, and a placeholder is not one token.
        """
        if not self._placeholders.keys() >= set(modalities):
            return []
        if isinstance(prompt, str):
            places = [Place(*match.span(), self._modality_of[match[0]]) for match in self._pattern.finditer(prompt)]
        else:
            self._check_has_tokens(modalities)
            of_token = self.token_ids
            places = [Place(index, index + 1, of_token[one]) for index, one in enumerate(prompt) if one in of_token]
        in_prompt, given = Counter(place.modality for place in places), Counter(modalities)
        for modality, text in self._placeholders.items():
            expected, count, name = in_prompt[modality], given[modality], MODALITY_NAMES[modality]
            if expected != count:
                problem = f"must have one {name} for each {text!r} in the prompt, which has {expected}; given: {count}"
                raise refusal("media", problem, expected, count)
        return places

    def _check_has_tokens(self, modalities: Sequence[common_pb2.Modality]) -> None:
        known = self.token_ids.values()
        missing = next((one for one in modalities if one in self._placeholders and one not in known), None)
        if missing is not None:
            text = self._placeholders[missing]
            message = f"token_ids cannot stand beside media: this model's placeholder {text!r} is not one token; send text"
            raise UnimplementedError(message, field="token_ids", value=text)

    def tokenized(
        self,
        prompt: str | list[int],
        places: Sequence[Place] = (),
        expansions: Sequence[tuple[common_pb2.Modality, Expansion]] = (),
        *,
        add_special_tokens: bool,
        with_offsets: bool,
    ) -> TokenizedPrompt:
        """The tokens of a prompt.

        Args:
            places: from `places`.
            expansions: of the media, in the order of the request. The items of a modality take its placeholders in this order.
            add_special_tokens: see `Tokenizer.encode`. For a text only.
            with_offsets: compute where each token's text starts.

        Raises:
            InvalidRequestError: the prompt has further tokens whose embeddings come from an encoder.
        """
        waiting = {
            modality: iter([index for index, (one, _) in enumerate(expansions) if one == modality]) for modality in MODALITY_NAMES
        }
        order = [next(waiting[place.modality]) for place in places]
        texts = [expansions[index][1].text for index in order]
        if isinstance(prompt, str):
            text, (ids, offsets) = prompt, self._of_text(prompt, places, texts, add_special_tokens, with_offsets)
        else:
            text, starts = decode_with_starts(self._tokenizer, prompt, with_offsets)
            ids, offsets = self._of_tokens(prompt, places, texts, starts)
        if not places:
            return TokenizedPrompt(text, ids, offsets)
        try:
            ranges = placeholder_ranges(ids, self._embed_token_ids, [(index, expansions[index][1].num_embeds) for index in order])
        except ValueError as error:
            raise InvalidRequestError(str(error), field="text" if isinstance(prompt, str) else "token_ids") from error
        return TokenizedPrompt(text, ids, offsets, ranges)

    def _of_text(
        self, text: str, places: Sequence[Place], expanded: Sequence[str], add_special_tokens: bool, with_offsets: bool
    ) -> tuple[list[int], list[int] | None]:
        parts, end = [], 0
        for place, expansion in zip(places, expanded, strict=True):
            parts += [text[end : place.start], expansion]
            end = place.end
        whole = "".join([*parts, text[end:]])
        if not with_offsets:
            return self._tokenizer.encode(whole, add_special_tokens), None
        ids, offsets = self._encode_with_starts(whole, add_special_tokens)
        return ids, _before_expansion(offsets, places, expanded)

    def _of_tokens(
        self, given: list[int], places: Sequence[Place], expanded: Sequence[str], starts: list[int] | None
    ) -> tuple[list[int], list[int] | None]:
        ids: list[int] = []
        offsets: list[int] = []
        end = 0
        for start, stop, text in self._joined_line_breaks(given, places, expanded):
            inner = self._tokenizer.encode_inner(text)
            ids += [*given[end:start], *inner]
            if starts is not None:
                offsets += [*starts[end:start], *[starts[start]] * len(inner)]
            end = stop
        ids += given[end:]
        return ids, None if starts is None else [*offsets, *starts[end:]]

    def _joined_line_breaks(self, given: list[int], places: Sequence[Place], expanded: Sequence[str]) -> list[tuple[int, int, str]]:
        """Ranges of the given tokens, each with the text that takes its place.

        Line breaks in a row are often one token. So the line breaks of an expansion are joined with those of the prompt and of the
        expansion before it, as in vLLM.
        """
        ranges: list[tuple[int, int, str]] = []
        end = 0
        for place, text in zip(places, expanded, strict=True):
            start, stop = place.start, place.end
            while text.startswith("\n") and start > end and (breaks := self._line_breaks(given[start - 1])):
                start, text = start - 1, breaks + text
            while text.endswith("\n") and stop < len(given) and (breaks := self._line_breaks(given[stop])):
                stop, text = stop + 1, text + breaks
            if ranges and start == end and text.startswith("\n"):
                before_start, before_stop, before = ranges[-1]
                kept = before.rstrip("\n")
                ranges[-1], text = (before_start, before_stop, kept), before[len(kept) :] + text
            ranges.append((start, stop, text))
            end = stop
        return ranges

    def _line_breaks(self, token_id: int) -> str:
        """The token's text if it consists of line breaks only; else empty."""
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return "" if text.strip("\n") else text

    def _encode_with_starts(self, text: str, add_special_tokens: bool) -> tuple[list[int], list[int]]:
        token_ids, spans = self._tokenizer.encode_with_offsets(text, add_special_tokens)
        starts, end = [], 0
        for span_start, span_end in spans:
            # Spans of byte-level tokens leave out a leading space, and overlap when tokens share a character. Tokens that the
            # tokenizer added have an empty span.
            starts.append(min(span_start, end) if span_end > span_start else end)
            end = max(end, span_end)
        return token_ids, starts


def _before_expansion(offsets: list[int], places: Sequence[Place], expanded: Sequence[str]) -> list[int]:
    """Offsets in an expanded text, as offsets in the text before. Those inside of an expansion become the placeholder's."""
    #: Where each expansion starts in the expanded text, and by how many characters the text behind it is shifted.
    starts, shifts, shift = [], [0], 0
    for place, expansion in zip(places, expanded, strict=True):
        starts.append(place.start + shift)
        shift += len(expansion) - (place.end - place.start)
        shifts.append(shift)

    def before(offset: int) -> int:
        number = bisect.bisect_right(starts, offset)
        given = offset - shifts[number]
        is_inside = number and given < places[number - 1].end
        return places[number - 1].start if is_inside else given

    return [before(offset) for offset in offsets]


def decode_with_starts(tokenizer: Tokenizer, token_ids: list[int], with_offsets: bool) -> tuple[str, list[int] | None]:
    """The text of a prompt, and where each token's text starts in it, in characters; None unless `with_offsets`."""
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    if not with_offsets:
        return text, None
    stream = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    lengths = (len(stream.feed(token_id)) for token_id in token_ids)
    return text, list(itertools.accumulate(lengths, initial=0))[:-1]

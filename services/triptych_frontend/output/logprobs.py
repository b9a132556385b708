"""Log probabilities in the client's form: with the texts of the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triptych.v1 import engine_pb2, generation_pb2

from triptych_frontend.tokens.token_text import TokenTexts


def token_logprob(logprobs: engine_pb2.TokenLogprobs, texts: TokenTexts, text_offset: int) -> generation_pb2.TokenLogprob:
    """The log probabilities of one position, in the client's form.

    Args:
        text_offset: where the token's text starts in the choice's text, in characters.
    """
    text, data = texts.get(logprobs.token_id)
    top = []
    for token_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True):
        top_text, top_data = texts.get(token_id)
        top.append(generation_pb2.TopLogprob(token_id=token_id, token=top_text, utf8=top_data, logprob=logprob))
    return generation_pb2.TokenLogprob(
        token_id=logprobs.token_id,
        token=text,
        utf8=data,
        logprob=logprobs.logprob,
        top=top,
        text_offset=text_offset,
        rank=logprobs.rank,
    )


def prompt_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[engine_pb2.TokenLogprobs], offsets: Sequence[int], texts: TokenTexts
) -> Iterator[generation_pb2.TokenLogprob]:
    """The log probabilities of a prompt. Its first token has none, because nothing precedes it.

    Args:
        logprobs: entry i describes prompt token i + 1.
        offsets: where each prompt token's text starts, in characters.
    """
    text, data = texts.get(token_ids[0])
    yield generation_pb2.TokenLogprob(token_id=token_ids[0], token=text, utf8=data, text_offset=offsets[0])
    for entry, offset in zip(logprobs, offsets[1:], strict=True):
        yield token_logprob(entry, texts, offset)

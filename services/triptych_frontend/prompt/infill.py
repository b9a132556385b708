"""Filling in the middle: a prompt of a prefix and a suffix, in the format that the model's tokenizer has tokens for.

The formats are those of the models' publishers:

* Qwen2.5-Coder, CodeGemma, Granite 4: github.com/QwenLM/Qwen2.5-Coder, "Fill in the middle".
* StarCoder, StarCoder2, Granite Code: huggingface.co/bigcode/starcoder2-15b.
* DeepSeek-Coder: github.com/deepseek-ai/DeepSeek-Coder, "Code Insertion". Its second marker is the hole.
* CodeLlama: `infilling_prompt_tokens` of github.com/meta-llama/codellama; transformers' CodeLlamaTokenizer has the same.
* Codestral: `encode_fim` of github.com/mistralai/mistral-common. The suffix comes first, and the answer follows the prefix.
* Seed-Coder: arxiv.org/abs/2506.03524, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from triptych.v1 import generation_pb2

from triptych_frontend.errors import refusal
from triptych_frontend.prompt.raw_prompt import TokenizedPrompt
from triptych_frontend.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class InfillFormat:
    """How a family writes such prompts.

    Attributes:
        prefix, suffix: the tokens before them.
        middle: the token behind both; None if nothing is there.
        ends: tokens beside these and the model's own that end an answer.
        suffix_first: the suffix comes before the prefix.
    """

    prefix: str
    suffix: str
    middle: str | None
    ends: tuple[str, ...] = ()
    suffix_first: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """The tokens of the format."""
        return tuple(filter(None, (self.prefix, self.suffix, self.middle)))


_FORMATS = (
    InfillFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ends=("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    InfillFormat("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ends=("<fim_pad>", "<repo_name>", "<file_sep>")),
    InfillFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    InfillFormat("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    InfillFormat("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),
    InfillFormat("[PREFIX]", "[SUFFIX]", None, suffix_first=True),
)


class Infill:
    """Writes prompts in one format. Thread-safe.

    Args:
        form: its markers are tokens of the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, form: InfillFormat) -> None:
        self._tokenizer = tokenizer
        ids = {text: token_id for text in (*form.markers, *form.ends) if (token_id := tokenizer.id_of(text)) is not None}
        self._suffix_first = form.suffix_first
        self._prefix_id, self._suffix_id = ids[form.prefix], ids[form.suffix]
        self._middle = [ids[form.middle]] if form.middle is not None else []
        self._stop_token_ids = tuple(ids.values())

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Infill | None:
        """In the first format for which the tokenizer has all tokens; None if there is none."""
        known = (one for one in _FORMATS if all(tokenizer.id_of(text) is not None for text in one.markers))
        found = next(known, None)
        return None if found is None else cls(tokenizer, found)

    def tokenized(self, prefix: str, suffix: str, add_special_tokens: bool) -> TokenizedPrompt:
        """The prompt, whose answer stands between prefix and suffix.

        A tokenizer that puts a space before a text does so before the prefix, and not before the suffix.

        Args:
            add_special_tokens: begin with the tokens that the tokenizer puts before a text.
        """
        before = [self._prefix_id, *self._tokenizer.encode(prefix, add_special_tokens=False)] if prefix else [self._prefix_id]
        behind = [self._suffix_id, *self._tokenizer.encode_inner(suffix)]
        parts = (behind, before) if self._suffix_first else (before, behind)
        start = self._tokenizer.around_text[0] if add_special_tokens else []
        token_ids = [*start, *parts[0], *parts[1], *self._middle]
        return TokenizedPrompt(prefix, token_ids, stop_token_ids=self._stop_token_ids)


def infill_for(request: generation_pb2.CompleteRequest, infill: Infill | None, model: str) -> Infill:
    """What writes the prompt of a request with a suffix.

    Args:
        infill: of the model's tokenizer.
        model: its name.

    Raises:
        InvalidRequestError: the model fills nothing in, or the request has what knows no suffix.
    """
    if infill is None:
        raise refusal("suffix", f"cannot be honoured: the tokenizer of {model} has no tokens to fill in the middle", value=model)
    if request.WhichOneof("prompt") != "text":
        raise refusal("suffix", "is only for a prompt that is a text")
    if request.media:
        raise refusal("suffix", "is not for prompts with media")
    if request.echo:
        raise refusal("echo", "is not for prompts with a suffix")
    if request.options.sampling.HasField("prompt_logprobs"):
        raise refusal("options.sampling.prompt_logprobs", "is not for prompts with a suffix")
    if request.options.HasField("truncate_prompt_tokens"):
        raise refusal("options.truncate_prompt_tokens", "is not for prompts with a suffix, which would lose their marks")
    return infill

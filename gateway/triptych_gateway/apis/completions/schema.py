"""POST /v1/completions: request and answer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from triptych_gateway.wire.cost import TriptychExtension, Usage
from triptych_gateway.wire.generation import GenerationRequest
from triptych_gateway.wire.logprobs import PromptLogprobs
from triptych_gateway.wire.schema import UINT32_MAX, Prompts, PromptTokenIds, at, optional, prompt_list

#: Most prompts per request. Each becomes one frontend call.
MAX_PROMPTS = 256
#: OpenAI's default for requests without max_tokens.
DEFAULT_MAX_TOKENS = 16

TextList = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
TokenIdLists = Annotated[list[PromptTokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]


class CompletionRequest(GenerationRequest):
    """OpenAI's request, and the sampling options that vLLM adds to it."""

    prompt: Annotated[
        Prompts[TextList, TokenIdLists], Field(description="A text, a list of texts, token ids, or a list of lists of token ids.")
    ]
    max_tokens: int | None = optional(
        f"Most tokens per choice; 0 only with echo. Default {DEFAULT_MAX_TOKENS}.", ge=0, le=UINT32_MAX
    )
    logprobs: int | None = optional("Send the log probability of each token and of this many alternatives.", ge=0, le=20)
    echo: bool | None = optional("Send the prompt's text first.")
    add_special_tokens: bool | None = optional("Let the tokenizer add its own to a text. Default true.")
    suffix: str | None = optional(
        "Text behind the answer: the model fills in the middle. For texts, and models whose tokenizer can."
    )

    @property
    def token_limit(self) -> int:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts as a list."""
        return prompt_list(self.prompt)

    @model_validator(mode="after")
    def _completion_options_fit_together(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise at("max_tokens", "must be at least 1 unless echo is true; given: 0")
        if self.echo and self.prompt_logprobs is not None:
            raise at("prompt_logprobs", "not together with echo; then logprobs has those of the prompt")
        if self.suffix and not isinstance(self.prompts[0], str):
            raise at("suffix", "only for prompts that are texts")
        if self.suffix and self.echo:
            raise at("suffix", "not together with echo")
        return self


class CompletionLogprobs(BaseModel):
    """Log probabilities, one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One continuation. Choice i of prompt p has the index p * n + i."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: Annotated[str | int | None, Field(description="The stop string or stop token id that ended it.")]
    token_ids: list[int] | None = optional("Present when return_token_ids is true.")
    prompt_logprobs: PromptLogprobs | None = optional("Present when prompt_logprobs was given.")


class Completion(BaseModel):
    """The answer when stream is not set."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[CompletionChoice]
    usage: Usage
    triptych: TriptychExtension

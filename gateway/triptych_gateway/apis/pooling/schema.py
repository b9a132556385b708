"""Embeddings, pooling, classify, score, rerank: requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from triptych_gateway.wire.conversation import ChatPrompt, TextOrMessages
from triptych_gateway.wire.schema import NoOp, Prompts, PromptTokenIds, Schema, at, optional, prompt_list

#: Most inputs of one request.
MAX_INPUTS = 65_536


def _not_zero(tokens: int | None) -> int | None:
    if tokens == 0:
        raise ValueError("must be -1 or at least 1")
    return tokens


_Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
_TokenIdLists = Annotated[list[PromptTokenIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
_Truncation = Annotated[
    int | None,
    Field(ge=-1, le=2**31 - 1, description="Cut inputs to this many tokens, at least 1; -1 is as many as the model takes."),
    AfterValidator(_not_zero),
]
_Priority = Annotated[int | None, Field(ge=-(2**31), le=2**31 - 1, description="Lower runs first. Default 0.")]
_Activation = Annotated[bool | None, Field(description="Apply the model's activation, sigmoid or softmax. Default true.")]
_User = Annotated[str | None, Field(description="The client's own label of its end user; it changes nothing here.")]
_Model = Annotated[str | None, Field(description="A name from /v1/models; by default the only one.")]


class _InputFields(TextOrMessages):
    text_field = "input"

    input: Prompts[_Texts, _TokenIdLists] | None = optional("A text, a list of texts, token ids, or a list of lists of token ids.")
    user: _User = None
    truncate_prompt_tokens: _Truncation = None
    priority: _Priority = None
    cache_salt: str | None = optional("The embeddings of media are shared only between requests of the same salt.", min_length=1)


class InputRequest(ChatPrompt, _InputFields):
    """The fields that the routes with `input` share."""

    add_generation_prompt: bool | None = optional("With messages: end with the start of an assistant turn. Default false.")

    @property
    def inputs(self) -> list[str | list[int]]:
        """The inputs as a list; empty with messages."""
        return [] if self.input is None else prompt_list(self.input)

    @model_validator(mode="after")
    def _prompt_has_one_end(self) -> Self:
        self.check_end()
        return self


class _VectorRequest(InputRequest):
    dimensions: int | None = optional("Length of the vectors, for models whose vectors can be cut.", ge=1, le=2**31 - 1)
    encoding_format: Literal["float", "base64"] | None = optional("base64: of float32, little-endian.")
    normalize: bool | None = optional("Scale the vectors to length 1. Default: as the model was made.")


class EmbeddingRequest(_VectorRequest):
    """OpenAI's request, and what vLLM adds to it."""

    model: Annotated[str, Field(description="A name from /v1/models.")]


class PoolingRequest(_VectorRequest):
    """vLLM's request for what the model's pooling gives."""

    model: _Model = None
    task: Literal["embed", "token_embed", "classify"] | None = optional(
        "token_embed: a vector per token. Default: embed, or classify if the model classifies."
    )
    use_activation: _Activation = None


class ClassifyRequest(InputRequest):
    """vLLM's request for the values of a classifier's labels."""

    model: _Model = None
    use_activation: _Activation = None


_OneOrMany = str | _Texts


class _PairsRequest(Schema):
    model: _Model = None
    truncate_prompt_tokens: _Truncation = None
    use_activation: _Activation = None
    priority: _Priority = None
    user: _User = None


class ScoreRequest(_PairsRequest):
    """vLLM's request: one text against several, or pairs. The two sides have one of three pairs of names."""

    text_1: _OneOrMany | None = optional("One text, or as many as text_2.")
    text_2: _OneOrMany | None = optional("One text or several.")
    queries: _OneOrMany | None = optional("Another name of text_1.")
    documents: _OneOrMany | None = optional("Another name of text_2, with queries.")
    items: _OneOrMany | None = optional("Another name of text_2, with queries.")

    @property
    def sides(self) -> tuple[str, str]:
        """The names of the two fields that are used."""
        given = {name for name in ("text_1", "text_2", "queries", "documents", "items") if getattr(self, name) is not None}
        return next((pair for pair in _SIDES if given == set(pair)), ("", ""))

    @model_validator(mode="after")
    def _two_sides(self) -> Self:
        first, second = self.sides
        if not first:
            raise at("text_1", "send text_1 and text_2, or queries and documents, or queries and items")
        counts = [len(texts_of(getattr(self, name))) for name in (first, second)]
        if counts[0] not in (1, counts[1]):
            raise at(first, f"must be one text or as many as {second} ({counts[1]}); given: {counts[0]}")
        return self


_SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"))


def texts_of(value: str | list[str]) -> list[str]:
    """A text, or several, as a list."""
    return [value] if isinstance(value, str) else value


class TextDocument(Schema):
    """A document as an object."""

    text: str


class RerankRequest(_PairsRequest):
    """The request of Cohere, Jina and vLLM."""

    query: str
    documents: Annotated[
        list[str | TextDocument],
        Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True, description="Texts, or objects with a text."),
    ]
    top_n: int | None = optional("How many to send; 0 and the default send all.", ge=0, le=2**31 - 1)
    return_documents: bool | None = optional("Send the documents too. Default true, for /v2/rerank false.")
    max_tokens_per_doc: Annotated[Any, NoOp()] = None
    max_chunks_per_doc: Annotated[Any, NoOp()] = None
    rank_fields: Annotated[Any, NoOp()] = None

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


class PoolingUsage(BaseModel):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    index: int
    embedding: Annotated[list[float] | str, Field(description="Numbers, or base64 of float32.")]


class EmbeddingList(BaseModel):
    """The vectors, in the order of the inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PoolingUsage


class _List(BaseModel):
    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: PoolingUsage


class Pooled(BaseModel):
    """What was pooled of one input."""

    object: Literal["pooling"]
    index: int
    data: Annotated[list[float] | list[list[float]] | str, Field(description="A vector, a vector per token, or base64 of float32.")]


class PooledList(_List):
    """In the order of the inputs."""

    data: list[Pooled]


class Classification(BaseModel):
    """The likeliest label of an input, and the values of all labels."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationList(_List):
    """In the order of the inputs."""

    data: list[Classification]


class Score(BaseModel):
    """How well a pair fits together."""

    object: Literal["score"]
    index: int
    score: float


class ScoreList(_List):
    """In the order of the pairs."""

    data: list[Score]


class RankedDocument(BaseModel):
    """A document."""

    text: str


class Ranked(BaseModel):
    """A document's place among the others."""

    index: Annotated[int, Field(description="Of the document in the request.")]
    relevance_score: float
    document: RankedDocument | None = optional("Present when return_documents is true.")


class Ranking(BaseModel):
    """Documents, the most relevant first."""

    id: str
    model: str
    results: list[Ranked]
    usage: PoolingUsage

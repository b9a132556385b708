"""`options` of Ollama's requests. Those that say how a model is run are refused: that is set where it is served."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import model_validator

from triptych_gateway.wire.schema import UINT32_MAX, NoOp, Schema, StopStrings, at, optional

_OPERATORS = "how a model is run is set where it is served"
_SAMPLERS = "send top_k, top_p or min_p"
_MIROSTAT = "Says nothing without mirostat, which is refused."
#: Ollama looks back over so many tokens for these; here it is all tokens.
_PENALTIES = {"repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}


class OllamaOptions(Schema):
    """Options of generation. Defaults are the model's own, and not Ollama's."""

    num_predict: int | None = optional("Most tokens to generate; -1 and -2: as many as the context takes.", ge=-2, le=UINT32_MAX)
    temperature: float | None = optional("Divides the logits; 0 is greedy.", ge=0, le=100)
    top_k: int | None = optional("Keep the k likeliest tokens; 0 keeps all.", ge=0, le=UINT32_MAX)
    top_p: float | None = optional("Smallest set of tokens with this probability.", gt=0, le=1)
    min_p: float | None = optional("Drop tokens less likely than this share of the likeliest.", ge=0, le=1)
    seed: int | None = optional("Same seed, same random numbers; -1: others each time.", ge=-(2**63), le=2**63 - 1)
    stop: StopStrings | None = optional("Up to 16 strings that end the answer; they are not sent.")
    repeat_penalty: float | None = optional(
        "Divides positive and multiplies negative logits of prompt and output tokens.", ge=0.01, le=10
    )
    presence_penalty: float | None = optional("Subtracted once from the logit of each generated token.", ge=-2, le=2)
    frequency_penalty: float | None = optional("Subtracted from a token's logit for each time it was generated.", ge=-2, le=2)
    repeat_last_n: int | None = optional("Last tokens that penalties look at. With a penalty only -1: all.", ge=-1, le=UINT32_MAX)
    num_ctx: int | None = optional(
        "The context that the client counts on, in tokens. More than the model's is refused; less changes nothing.", ge=1
    )
    num_keep: int | None = optional("Says nothing: nothing is shifted out of the context.", ge=-1)
    mirostat_tau: float | None = optional(_MIROSTAT)
    mirostat_eta: float | None = optional(_MIROSTAT)

    mirostat: Annotated[Any, NoOp(0, because=_SAMPLERS)] = None
    tfs_z: Annotated[Any, NoOp(1, 1.0, because=_SAMPLERS)] = None
    typical_p: Annotated[Any, NoOp(1, 1.0, because=_SAMPLERS)] = None
    penalize_newline: Annotated[Any, NoOp(True, because="penalties treat all tokens alike")] = None
    numa: Annotated[Any, NoOp(False, because=_OPERATORS)] = None
    num_batch: Annotated[Any, NoOp(because=_OPERATORS)] = None
    num_gpu: Annotated[Any, NoOp(-1, because=_OPERATORS)] = None
    main_gpu: Annotated[Any, NoOp(0, because=_OPERATORS)] = None
    num_thread: Annotated[Any, NoOp(0, because=_OPERATORS)] = None
    low_vram: Annotated[Any, NoOp(False, because=_OPERATORS)] = None
    f16_kv: Annotated[Any, NoOp(True, because=_OPERATORS)] = None
    use_mmap: Annotated[Any, NoOp(because=_OPERATORS)] = None
    use_mlock: Annotated[Any, NoOp(False, because=_OPERATORS)] = None
    logits_all: Annotated[Any, NoOp(False, because="send logprobs")] = None
    vocab_only: Annotated[Any, NoOp(False, because=_OPERATORS)] = None
    embedding_only: Annotated[Any, NoOp(False, because=_OPERATORS)] = None

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate; None for as many as the context takes."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        if self.num_predict == 0:
            raise at("options.num_predict", "must be at least 1, or -1 or -2; given: 0")
        penalty = next((name for name, off in _PENALTIES.items() if getattr(self, name) not in (None, off)), None)
        if penalty is not None and self.repeat_last_n not in (None, -1):
            raise at("options.repeat_last_n", f"must be -1 with {penalty}, which looks at all tokens; given: {self.repeat_last_n}")
        return self


#: Where requests have no options.
NO_OPTIONS = OllamaOptions()

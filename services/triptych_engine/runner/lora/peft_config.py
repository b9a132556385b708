"""PEFT's adapter_config.json. Every key that would change the result and is not implemented is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from typing import Any

from triptych.errors import InvalidRequestError

#: Largest rank that is computed.
MAX_RANK = 512
#: Keys that say how an adapter was trained, or which layers it has, which its weights say, too.
_IGNORED = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules",
    "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core",
    "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
    "velora_config",
}  # fmt: skip
_READ = {
    "alpha_pattern", "bias", "init_lora_weights", "lora_alpha", "peft_type", "r", "rank_pattern", "target_modules", "use_rslora",
}  # fmt: skip
#: Initialisations that leave the base model as it is. Others change its weights: the adapter is then not the whole difference.
_INITIALISATIONS = (True, False, None, "gaussian", "eva", "orthogonal")


class PeftConfig:
    """The configuration of one LoRA adapter.

    Args:
        name: of the adapter, for errors.
        text: the file.

    Raises:
        InvalidRequestError: it is no LoRA adapter, or it asks for something that is not implemented.
    """

    def __init__(self, name: str, text: bytes) -> None:
        self._name = name
        try:
            values = json.loads(text)
            if not isinstance(values, dict):
                raise TypeError("it is no object")
            #: The file with its keys in order, so that equal configurations are equal bytes.
            self.canonical = json.dumps(values, sort_keys=True).encode()
            self._check(values)
            self._rank, self._alpha = int(values["r"]), float(values["lora_alpha"])
            self._ranks: dict[str, int] = {key: int(rank) for key, rank in (values.get("rank_pattern") or {}).items()}
            self._alphas: dict[str, float] = {key: float(one) for key, one in (values.get("alpha_pattern") or {}).items()}
            for pattern in (*self._ranks, *self._alphas):
                re.compile(_whole(pattern))
            if not all(map(math.isfinite, (self._alpha, *self._alphas.values()))):
                raise ValueError("alpha is not finite")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, re.error) as error:
            raise self._refusal(f"its configuration cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
        self._is_rank_stabilised = bool(values.get("use_rslora"))
        self._targets = values.get("target_modules")

    def _check(self, values: dict[str, Any]) -> None:
        if values.get("peft_type") != "LORA":
            raise self._refusal(f"peft_type is {shown(values.get('peft_type'))}; only LORA is supported")
        if values.get("bias", "none") != "none":
            raise self._refusal(f"bias is {shown(values['bias'])}; only 'none' is supported")
        if values.get("init_lora_weights") not in _INITIALISATIONS:
            how, supported = shown(values["init_lora_weights"]), "true, false, gaussian, eva, orthogonal"
            raise self._refusal(f"init_lora_weights is {how}; supported are those that leave the base model as it is: {supported}")
        # PEFT writes all of its keys. Those that are null, false or empty ask for nothing, but for this one.
        unknown = sorted(key for key, value in values.items() if value and key not in _IGNORED | _READ)
        if values.get("alora_invocation_tokens") == []:
            unknown.append("alora_invocation_tokens")
        if unknown:
            told = ", ".join(f"{key[:60]} = {json.dumps(values[key])[:60]}" for key in unknown[:5])
            raise self._refusal(f"its configuration has what is not supported: {told}")

    def rank(self, module: str) -> int:
        """The rank of a module, whose name is as in the model."""
        rank = self._ranks.get(_pattern_of(module, self._ranks), self._rank)
        if not 1 <= rank <= MAX_RANK:
            raise self._refusal(f"the rank of {module} is {rank}; it must be in [1, {MAX_RANK}]")
        return rank

    def scale(self, module: str) -> float:
        """What the update of a module is multiplied by."""
        rank = self.rank(module)
        alpha = self._alphas.get(_pattern_of(module, self._alphas), self._alpha)
        return alpha / (math.sqrt(rank) if self._is_rank_stabilised else rank)

    def check_complete(self, modules: Collection[str], model: Collection[str]) -> None:
        """Raise InvalidRequestError if weights are missing: if the configuration lists modules that the model has, and not these.

        Lists may name modules of other models.
        """
        for target in self._targets if isinstance(self._targets, list) else []:

            def is_meant(module: str, target: str = str(target)) -> bool:
                return module == target or module.endswith(f".{target}")

            if any(map(is_meant, model)) and not any(map(is_meant, modules)):
                raise self._refusal(f"its configuration names the module {shown(target)}, for which it has no weights")

    def _refusal(self, why: str) -> InvalidRequestError:
        return refusal(self._name, why)


def shown(value: object) -> str:
    """A value of a file in an error."""
    return repr(value)[:200]


def refusal(name: str, why: str) -> InvalidRequestError:
    """The error of requests with an adapter that cannot be used."""
    return InvalidRequestError(f"the adapter {name!r} cannot be used: {why}", field="lora", value=name)


def _pattern_of(module: str, patterns: Collection[str]) -> str:
    """The first pattern for a module (PEFT's `get_pattern_key`); the module itself if there is none."""
    return next((pattern for pattern in patterns if re.match(_whole(pattern), module)), module)


def _whole(pattern: str) -> str:
    return rf"(.*\.)?({pattern})$"

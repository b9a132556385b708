"""The model that this frontend serves, as clients and operators see it."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.errors import ModelNotFoundError, UnimplementedError
from triptych.v1 import common_pb2
from triptych_common.model.pooling import task_name


class ServedModel:
    """The model's description. Its context length is the shortest of the frontend's and its engines'.

    Args:
        info: from the model's files and the frontend's settings.
    """

    def __init__(self, info: common_pb2.ModelInfo) -> None:
        self.info = info
        self._own_max_model_len = info.max_model_len
        self._engine_max_model_len = info.max_model_len
        self._has_engines = False  # or had some

    @property
    def shortens_context(self) -> bool:
        """Whether this frontend's context is shorter than its engines', so that it must limit each output itself."""
        return self._own_max_model_len < self._engine_max_model_len

    def follow(self, engine_models: Sequence[common_pb2.ModelInfo]) -> None:
        """Adopt the shortest context of the engines. Without engines, the frontend's own applies."""
        contexts = [model.max_model_len for model in engine_models if model.max_model_len]
        self._engine_max_model_len = min(contexts, default=self._own_max_model_len)
        self.info.max_model_len = min(self._own_max_model_len, self._engine_max_model_len)
        if engine_models:  # else they are restarted, or sleep, and have their adapters afterwards
            self._has_engines = True
            self.info.capabilities.lora = any(model.capabilities.lora for model in engine_models)
            digests: dict[str, str] = {}
            for adapter in (adapter for model in engine_models for adapter in model.adapters):
                # Some engines may not have loaded it, and some may have an older one.
                digests[adapter.name] = max(adapter.digest, digests.get(adapter.name, ""))
            del self.info.adapters[:]
            self.info.adapters.extend(common_pb2.Adapter(name=name, digest=digests[name]) for name in sorted(digests))

    def listed(self) -> list[common_pb2.ModelInfo]:
        """The model, and each of its adapters as a model of its own."""
        models = [common_pb2.ModelInfo(), *(common_pb2.ModelInfo() for _ in self.info.adapters)]
        for model in models:
            model.CopyFrom(self.info)
            del model.adapters[:]
        for model, adapter in zip(models[1:], self.info.adapters, strict=True):
            model.name, model.parent = f"{self.info.name}:{adapter.name}", self.info.name
            model.weights_fingerprint += adapter.digest
            model.capabilities.lora = False
        return models

    def adapter_of(self, name: str) -> str:
        """The adapter that a request names as `model:adapter`; empty for the model itself, or for no name.

        Raises:
            ModelNotFoundError: it names another model, or this one takes no adapters.
        """
        # Without an engine it is not known yet whether they take adapters.
        may_be_one = self.info.capabilities.lora or not self._has_engines
        adapter = name.removeprefix(f"{self.info.name}:") if may_be_one else name
        if adapter == name or not adapter:
            self.check_name(name)
            return ""
        return adapter

    def check_task(self, task: common_pb2.Task) -> None:
        """Raise UnimplementedError unless the model does this task."""
        tasks = self.info.capabilities.tasks
        if task not in (tasks or (common_pb2.TASK_GENERATE,)):
            does = ", ".join(task_name(one) for one in tasks) or "generate"
            raise UnimplementedError(f"{self.info.name} does not {task_name(task)}; it does: {does}", field="model", limit=does)

    def check_name(self, name: str) -> None:
        """Raise ModelNotFoundError unless the name is this model's or empty."""
        if name and name != self.info.name:
            raise ModelNotFoundError(
                f"the model {name!r} is not served here; known: {self.info.name!r}", field="model", limit=self.info.name, value=name
            )

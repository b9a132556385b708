"""What this frontend serves, as clients and operators see it."""

from __future__ import annotations

from collections.abc import Sequence

from triptych_common.errors import ModelNotFoundError
from triptych_common.pb import common_pb2


class ServedModel:
    """The model's description; its context is the shortest of the frontend's and its engines'.

    Args:
        info: what the frontend read from the model's files and its own settings.
    """

    def __init__(self, info: common_pb2.ModelInfo) -> None:
        self.info = info
        self._own_max_model_len = info.max_model_len
        self._engine_max_model_len = info.max_model_len

    @property
    def shortens_context(self) -> bool:
        """Whether this frontend allows less than its engine does, so that it must bound each output itself."""
        return self._own_max_model_len < self._engine_max_model_len

    def follow(self, engine_models: Sequence[common_pb2.ModelInfo]) -> None:
        """Take over the context of the engines, the shortest of them; without an engine the frontend's own holds."""
        contexts = [model.max_model_len for model in engine_models if model.max_model_len]
        self._engine_max_model_len = min(contexts, default=self._own_max_model_len)
        self.info.max_model_len = min(self._own_max_model_len, self._engine_max_model_len)

    def check_name(self, name: str) -> None:
        """Raise ModelNotFoundError unless the name is this model's or empty."""
        if name and name != self.info.name:
            raise ModelNotFoundError(
                f"the model {name!r} is not served here; known: {self.info.name!r}", field="model", limit=self.info.name, value=name
            )

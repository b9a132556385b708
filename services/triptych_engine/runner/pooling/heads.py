"""What follows the pooling: linear layers and normalisation, or a classifier and its activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from triptych.errors import StartupError
from triptych_common.model.pooling import Activation, PoolingModel
from triptych_common.model.store import read_json
from triptych_common.model.weights import read_header

from triptych_engine.scheduling.request import PoolingParams

#: Name of the linear layer after a decoder, as transformers saves it.
_SCORE = "score.weight"


class Head(Protocol):
    """Makes the results of whole prompts."""

    def finish(self, vectors: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        """float32 [n, size] from what was pooled, float32 [n, pooled_size]."""
        ...

    def finish_tokens(self, hidden: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        """float32 [num_tokens, size] of one prompt, from float32 [num_tokens, hidden_size]."""
        ...


class EmbeddingHead:
    """Linear layers, a cut to fewer dimensions, and a scaling to length 1, each where it is wanted.

    Args:
        dense: applied to pooled vectors. Vectors of tokens are the hidden states.
        normalize: scale vectors to length 1 unless a request says otherwise.
    """

    def __init__(self, dense: Sequence[nn.Module], normalize: bool) -> None:
        self._dense, self._normalize = dense, normalize

    def finish(self, vectors: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        for layer in self._dense:
            vectors = layer(vectors)
        vectors = vectors[:, : params.dimensions]
        wants = self._normalize if params.normalize is None else params.normalize
        return nn.functional.normalize(vectors, dim=-1) if wants else vectors

    def finish_tokens(self, hidden: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        hidden = hidden[:, : params.dimensions]
        return nn.functional.normalize(hidden, dim=-1) if params.normalize else hidden


class ClassificationHead:
    """A classifier.

    Args:
        classify: float32 [n, hidden_size] to logits [n, num_labels].
    """

    def __init__(self, classify: Callable[[torch.Tensor], torch.Tensor], activation: Activation) -> None:
        self._classify, self._activation = classify, activation

    def finish(self, vectors: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        logits = self._classify(vectors).float()
        if not params.activation or self._activation == "none":
            return logits
        return logits.sigmoid() if self._activation == "sigmoid" else logits.softmax(-1)

    def finish_tokens(self, hidden: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        raise NotImplementedError("a classifier has no vectors of tokens")


def embedding_head(path: Path, pooling: PoolingModel, device: torch.device) -> EmbeddingHead:
    """The head of an embedding model, with the linear layers that lie beside the model. Raises StartupError."""
    return EmbeddingHead([_dense(path / folder, device) for folder in pooling.dense], pooling.normalize)


def decoder_head(path: Path, pooling: PoolingModel, device: torch.device) -> Head:
    """The head of a decoder, with weights that its language model lacks. Raises StartupError."""
    if pooling.kind == "embed":
        return embedding_head(path, pooling, device)
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            if _SCORE in weights.keys():  # noqa: SIM118 - it is no dict
                score = weights.get_tensor(_SCORE).float().to(device)
                return ClassificationHead(partial(nn.functional.linear, weight=score), pooling.activation)
    raise StartupError(f"no file in {path} has the classifier's weights ({_SCORE})")


def _dense(folder: Path, device: torch.device) -> nn.Module:
    config, file = read_json(folder / "config.json"), folder / "model.safetensors"
    name = str(config.get("activation_function", "torch.nn.modules.linear.Identity")).rpartition(".")[2]
    activation = {"Identity": nn.Identity, "Tanh": nn.Tanh, "GELU": nn.GELU, "ReLU": nn.ReLU, "SiLU": nn.SiLU}.get(name)
    if activation is None:
        raise StartupError(f"{folder}/config.json names the activation {name}, which is not supported")
    if not file.is_file():
        raise StartupError(f"{file} is missing")
    read_header(file)
    weights = load_file(file)
    linear = nn.Linear(config["in_features"], config["out_features"], bias="linear.bias" in weights)
    linear.load_state_dict({name.removeprefix("linear."): tensor.float() for name, tensor in weights.items()})
    return nn.Sequential(linear, activation()).eval().requires_grad_(False).to(device)

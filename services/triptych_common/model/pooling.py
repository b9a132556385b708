"""What a pooling model does with its hidden states, from its files. Needs no torch.

The files are those of sentence-transformers (modules.json and the folders that it names) and of transformers (config.json).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from triptych.errors import InvalidRequestError, StartupError, UnimplementedError
from triptych.v1 import common_pb2

from triptych_common.model.store import model_info, read_json, text_config

TaskName = Literal["auto", "generate", "embed"]
PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
Activation = Literal["none", "sigmoid", "softmax"]

#: In the order in which sentence-transformers concatenates the results of several modes.
_LEGACY_MODES: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_MODES = frozenset(_LEGACY_MODES.values())
_CLASSIFIER = "ForSequenceClassification"
_GENERATORS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMultimodalLM")
#: Families whose tokens attend to tokens after them, with a configuration that does not say so.
_BIDIRECTIONAL = frozenset(
    {"albert", "bert", "big_bird", "camembert", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "esm"}
    | {"eurobert", "flaubert", "longformer", "mobilebert", "modernbert", "mpnet", "nomic_bert", "rembert", "roberta"}
    | {"roberta-prelayernorm", "roformer", "squeezebert", "xlm-roberta", "xlm-roberta-xl"}
)
#: Families whose positions start after the id of the padding token.
_OFFSET_POSITIONS = frozenset(
    ("camembert", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl")
)
#: Their padding token if the configuration does not name it.
_PADDING_ID = 1
#: class name of torch -> our name.
_ACTIVATIONS: dict[str, Activation] = {"Sigmoid": "sigmoid", "Identity": "none", "Softmax": "softmax"}


@dataclass(frozen=True, slots=True)
class PoolingModel:
    """How hidden states become vectors or labels."""

    #: embed: vectors. classify: values of labels.
    kind: Literal["embed", "classify"]
    #: Whether each token attends to all tokens of its text. If not, the model is a decoder.
    is_bidirectional: bool
    #: Length of a vector, or number of labels.
    size: int
    #: Results of several modes are concatenated.
    modes: tuple[PoolingMode, ...] = ("mean",)
    #: Folders of linear layers that follow the pooling, in their order.
    dense: tuple[str, ...] = ()
    normalize: bool = False
    #: Whether vectors can be cut to fewer dimensions; if only to certain ones, these.
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    activation: Activation = "none"
    #: Stands before each text, and whether texts are made lower case before the tokenizer reads them.
    prompt: str = ""
    lowercases: bool = False
    #: Longest input in tokens that the model was made for; None: its context.
    max_tokens: int | None = None

    @property
    def tasks(self) -> tuple[common_pb2.Task, ...]:
        """What a service can be asked for. The first one is the default."""
        if self.kind == "embed":
            return (common_pb2.TASK_EMBED, common_pb2.TASK_TOKEN_EMBED, common_pb2.TASK_SCORE)
        return (common_pb2.TASK_CLASSIFY, *((common_pb2.TASK_SCORE,) if len(self.labels) == 1 else ()))


def pooling_model(path: Path, task: TaskName = "auto") -> PoolingModel | None:
    """The pooling of the model in a directory; None if the model generates text.

    Args:
        task: `auto` decides by the files. `embed` also makes an embedding model of one that generates, or classifies.

    Raises:
        StartupError: the model cannot do the task, or its pooling is not supported.
    """
    config = read_json(path / "config.json")
    architecture = (config.get("architectures") or [""])[0]
    family = text_config(config).get("model_type", "")
    is_bidirectional = family in _BIDIRECTIONAL and not config.get("is_decoder")
    if task == "generate":
        if is_bidirectional:
            raise StartupError(f"{architecture or family} generates no text; leave --task out, or set it to embed")
        return None
    modules = _modules(path)
    if task == "auto" and not modules and not is_bidirectional and _CLASSIFIER not in architecture:
        is_bare = architecture.endswith("Model") and not architecture.endswith(_GENERATORS)
        if not is_bare or "vision_config" in config:
            return None
    text = text_config(config)
    size = next((text[name] for name in ("hidden_size", "dim", "d_model", "n_embd") if text.get(name)), 0)
    model = PoolingModel("embed", is_bidirectional, size, max_tokens=_max_tokens(path, config, family))
    if task == "auto" and _CLASSIFIER in architecture:
        return _classifier(model, path, config)
    return _embedder(model, path, config, modules)


def _modules(path: Path) -> list[dict[str, Any]]:
    file = path / "modules.json"
    modules: Any = read_json(file) if file.is_file() else []
    if not isinstance(modules, list):
        raise StartupError(f"{file} is not a list of modules")
    return modules


def _max_tokens(path: Path, config: dict[str, Any], family: str) -> int | None:
    limit = read_json(path / "sentence_bert_config.json").get("max_seq_length")
    positions = config.get("max_position_embeddings")
    if family in _OFFSET_POSITIONS and positions:
        padding = config.get("pad_token_id")
        positions -= (_PADDING_ID if padding is None else padding) + 1
    known = [value for value in (limit, positions) if value]
    return min(known) if known else None


def _classifier(model: PoolingModel, path: Path, config: dict[str, Any]) -> PoolingModel:
    names = config.get("id2label") or {}
    num_labels = len(names) or config.get("num_labels", 2)
    labels = tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(num_labels))
    saved = (config.get("sentence_transformers") or {}).get("activation_fn") or config.get("sbert_ce_default_activation_function")
    activation: Activation = "sigmoid" if num_labels == 1 else "softmax"
    if config.get("problem_type") == "multi_label_classification":
        activation = "sigmoid"
    elif config.get("problem_type") == "regression":
        activation = "none"
    if saved and num_labels == 1:
        name = str(saved).rpartition(".")[2]
        if name not in _ACTIVATIONS:
            raise StartupError(f"{path}/config.json names the activation {saved}, which is not supported")
        activation = _ACTIVATIONS[name]
    modes: tuple[PoolingMode, ...] = ("cls",) if model.is_bidirectional else ("lasttoken",)
    if config.get("classifier_pooling") == "mean":
        modes = ("mean",)
    return replace(model, kind="classify", size=num_labels, modes=modes, labels=labels, activation=activation)


def _embedder(model: PoolingModel, path: Path, config: dict[str, Any], modules: list[dict[str, Any]]) -> PoolingModel:
    own = read_json(path / "config_sentence_transformers.json")
    dimensions = config.get("matryoshka_dimensions") or own.get("matryoshka_dimensions") or ()
    is_matryoshka = bool(dimensions or config.get("is_matryoshka") or own.get("truncate_dim"))
    model = replace(
        model,
        is_matryoshka=is_matryoshka,
        matryoshka_dimensions=tuple(dimensions),
        prompt=_default_prompt(path, own),
        lowercases=bool(read_json(path / "sentence_bert_config.json").get("do_lower_case")),
    )
    if not modules:
        # Without a word from the model: what its family commonly does, and vectors that can be compared.
        return replace(model, modes=("mean",) if model.is_bidirectional else ("lasttoken",), normalize=True)
    modes, dense, normalize = model.modes, list[str](), False
    for module in modules:
        kind, folder = str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))
        if kind == "Pooling":
            modes = _modes(path / folder)
        elif kind == "Dense":
            dense.append(folder)
        elif kind == "Normalize":
            normalize = True
        elif kind not in ("Transformer", "Dropout"):
            raise StartupError(f"{path}/modules.json names a module {kind}, which is not supported")
        if normalize and kind == "Dense":
            raise StartupError(f"{path}/modules.json has a linear layer after the normalisation, which is not supported")
    size = read_json(path / dense[-1] / "config.json").get("out_features", 0) if dense else model.size * len(modes)
    return replace(model, size=size, modes=modes, dense=tuple(dense), normalize=normalize)


def _default_prompt(path: Path, own: dict[str, Any]) -> str:
    name, prompts = own.get("default_prompt_name"), own.get("prompts") or {}
    if name is None:
        return ""
    if name not in prompts:
        raise StartupError(f"{path}/config_sentence_transformers.json has no prompt with the name {name!r} of its default")
    return str(prompts[name])


def _modes(folder: Path) -> tuple[PoolingMode, ...]:
    config = read_json(folder / "config.json")
    if config.get("include_prompt") is False:
        raise StartupError(f"{folder}/config.json leaves prompts out of the pooling, which is not supported")
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or ())
    modes = modes or [mode for key, mode in _LEGACY_MODES.items() if config.get(key)] or ["mean"]
    unknown = [mode for mode in modes if mode not in _MODES]
    if unknown:
        raise StartupError(f"{folder}/config.json names the pooling mode {unknown[0]!r}, which is not supported")
    return tuple(cast("list[PoolingMode]", modes))


def served_model(
    path: Path, name: str, max_model_len: int | None, task: TaskName
) -> tuple[common_pb2.ModelInfo, PoolingModel | None]:
    """The description of a model and its pooling; None if it generates text. Arguments and errors as of `model_info`."""
    info, pooling = model_info(path, name, max_model_len), pooling_model(path, task)
    if pooling is None:
        info.capabilities.tasks.append(common_pb2.TASK_GENERATE)
        return info, None
    if max_model_len is None and pooling.max_tokens is not None:
        info.max_model_len = min(info.max_model_len, pooling.max_tokens)
    info.capabilities.tasks.extend(pooling.tasks)
    # Services that differ in what they do with the model must not work together.
    info.fingerprint = hashlib.sha256(f"{info.fingerprint} {pooling!r}".encode()).hexdigest()
    return info, pooling


def check_pooling(params: common_pb2.PoolingParams, pooling: PoolingModel) -> common_pb2.Task:
    """The task that the parameters ask for.

    Raises:
        UnimplementedError: the model does not do the task.
        InvalidRequestError: a parameter does not fit the task or the model; the error names its field.
    """
    task = params.task or pooling.tasks[0]
    if task not in pooling.tasks:
        does = ", ".join(task_name(one) for one in pooling.tasks)
        raise UnimplementedError(f"the model does not {task_name(task)}; it does: {does}", field="task", value=task_name(task))
    if params.HasField("dimensions"):
        _check_dimensions(params.dimensions, pooling)
    for field, kind in (("normalize", "embed"), ("activation", "classify")):
        if params.HasField(field) and pooling.kind != kind:
            models = "that embed" if kind == "embed" else "that classify"
            raise InvalidRequestError(f"{field} is only for models {models}", field=field)
    return task


def task_name(task: common_pb2.Task) -> str:
    """`embed`, `token_embed` ..."""
    return common_pb2.Task.Name(task).removeprefix("TASK_").lower()


def _check_dimensions(dimensions: int, pooling: PoolingModel) -> None:
    size, allowed = pooling.size, ""
    if pooling.kind != "embed":
        raise InvalidRequestError("dimensions is only for models that embed", field="dimensions", value=dimensions)
    if not pooling.is_matryoshka and dimensions != size:
        allowed = f"{size}: this model's vectors cannot be cut"
    elif pooling.matryoshka_dimensions and dimensions not in (*pooling.matryoshka_dimensions, size):
        allowed = f"one of {', '.join(map(str, pooling.matryoshka_dimensions))}"
    elif not 1 <= dimensions <= size:
        allowed = f"in [1, {size}]"
    if allowed:
        raise InvalidRequestError(
            f"dimensions must be {allowed}; given: {dimensions}", field="dimensions", limit=size, value=dimensions
        )

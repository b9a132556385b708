"""The models on this machine: `triptych list` and `triptych rm`."""

from __future__ import annotations

from pathlib import Path

import pytest
from triptych_cli.errors import CommandError
from triptych_cli.main import app
from triptych_cli.models.installed import InstalledModel, installed, remove
from triptych_cli.models.prepare_gguf import GGUF_NAME
from typer.testing import CliRunner


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a built-in model, what was prepared for a GGUF file, and a repository of the hub."""
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    builtin = tmp_path / "models" / "smollm2-135m-instruct-0.1.2"
    prepared = tmp_path / "gguf" / "small-0123456789ab"
    hub = tmp_path / "hub" / "models--org--name"
    for folder in (builtin, prepared, hub / "snapshots" / "a", hub / "blobs", hub / "refs"):
        folder.mkdir(parents=True)
    (builtin / "model.safetensors").write_bytes(bytes(3_000_000))
    (tmp_path / "small.gguf").write_bytes(bytes(5_000_000))
    (prepared / GGUF_NAME).symlink_to(tmp_path / "small.gguf")
    (hub / "blobs" / "b").write_bytes(bytes(2_000_000))
    (hub / "snapshots" / "a" / "model.safetensors").symlink_to(hub / "blobs" / "b")
    monkeypatch.setattr("huggingface_hub.scan_cache_dir.__defaults__", (tmp_path / "hub",))
    return tmp_path


def test_all_kinds_are_listed(cache: Path) -> None:
    lines = CliRunner().invoke(app, ["list"]).output.split("\n")
    rows = [line.split() for line in lines if line.strip()]
    assert [row[-3:] for row in rows[1:]] == [["gguf", "0", "MB"], ["hub", "2", "MB"], ["built-in", "3", "MB"]]
    assert {model.name for model in installed()} == {str(cache / "small.gguf"), "org/name", "smollm2-135m-instruct"}


def test_what_is_removed_is_gone_and_the_gguf_file_stays(cache: Path) -> None:
    result = CliRunner().invoke(app, ["rm", "org/name", str(cache / "small.gguf")])
    assert result.exit_code == 0
    assert "removed org/name: 2 MB" in result.output
    assert [model.name for model in installed()] == ["smollm2-135m-instruct"]
    assert (cache / "small.gguf").is_file()


def test_what_was_prepared_for_a_file_that_is_gone_or_has_changed_is_removed(cache: Path) -> None:
    again = cache / "gguf" / "small-ba9876543210"
    again.mkdir()
    (again / GGUF_NAME).symlink_to(cache / "small.gguf")
    (cache / "small.gguf").unlink()
    removed = remove([str(cache / "small.gguf")])
    assert {model.path.name for model in removed} == {"small-0123456789ab", "small-ba9876543210"}
    assert not [*(cache / "gguf").iterdir()]


def test_names_are_shown_as_they_are_without_what_a_terminal_obeys(cache: Path) -> None:
    link = cache / "gguf" / "small-0123456789ab" / GGUF_NAME
    link.unlink()
    link.symlink_to("/data/[bold]/\x1b]0;title\x07[/x].gguf")
    assert (
        "/data/[bold]/\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}[/x].gguf"
        in CliRunner().invoke(app, ["list"]).output
    )


def test_a_model_behind_a_link_stays(cache: Path) -> None:
    builtin = cache / "models" / "smollm2-135m-instruct-0.1.2"
    builtin.rename(cache / "elsewhere")
    builtin.symlink_to(cache / "elsewhere")
    with pytest.raises(CommandError, match=r"cannot remove .*: Cannot call rmtree on a symbolic link"):
        remove(["smollm2-135m-instruct"])
    assert (cache / "elsewhere" / "model.safetensors").is_file()


def test_nothing_is_removed_if_one_is_not_there(cache: Path) -> None:
    with pytest.raises(CommandError, match="no/such is not on this machine; `triptych list` lists what is"):
        remove(["org/name", "no/such"])
    assert len(installed()) == 3


def test_a_machine_without_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.scan_cache_dir.__defaults__", (tmp_path / "none",))
    models: list[InstalledModel] = installed()
    assert models == []


def completed(line: str, shell: str = "bash") -> list[str]:
    """What the shell is told when Tab is pressed behind a line."""
    names = {"_TRIPTYCH_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    result = CliRunner().invoke(app, prog_name="triptych", env=names | words)
    assert result.exit_code == 0, result.output
    assert not result.stderr
    return result.stdout.split()


@pytest.mark.parametrize("start", ["rm ", "run ", "serve ", "serve --engine.max-num-seqs 3 --dtype half ", "rm other "])
def test_the_shell_completes_models(start: str, cache: Path) -> None:
    assert completed(f"triptych {start}smol") == ["smollm2-135m-instruct"]
    assert set(completed(f"triptych {start}")) == {"smollm2-135m-instruct", "org/name", str(cache / "small.gguf")}
    assert not completed(f"triptych {start}nothing")


def test_the_shell_completes_commands_and_options() -> None:
    assert completed("triptych be") == ["bench"]
    assert completed("triptych bench --conc") == ["--concurrency"]


def test_zsh_is_told_names_and_takes_paths_where_there_is_none(cache: Path) -> None:
    assert "smollm2-135m-instruct" in " ".join(completed("triptych rm smol", "zsh"))
    assert completed("triptych serve ./dir", "zsh") == ["_files"]


def test_a_cache_that_cannot_be_read_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[InstalledModel]:
        raise PermissionError("no")

    monkeypatch.setattr("triptych_cli.models.installed.installed", fail)
    assert not completed("triptych rm smol")

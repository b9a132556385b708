"""What `make release` refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.release.__main__ import ReleaseError, release, untracked


def test_a_directory_with_other_files_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years of work")
    (tmp_path / "a.whl").write_text("")
    with pytest.raises(ReleaseError, match=r"has thesis\.txt, which no release makes; choose another directory"):
        release(tmp_path)
    assert len([*tmp_path.iterdir()]) == 2


def test_files_in_no_commit_are_found(tmp_path: Path) -> None:
    for name in ("services/known.py", "services/key.pem", "services/made.pyc", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text("*.pyc")
    for command in (["init", "-q"], ["add", "services/known.py"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert untracked(tmp_path) == ["services/key.pem"]

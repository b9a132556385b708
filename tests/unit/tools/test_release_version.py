"""The version of everything that is released."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import triptych
import triptych_common

from tools.release.version import current_version, differing, main, versions, write_version

_ROOT = Path(__file__).parents[3]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that have a version."""
    for name in versions(_ROOT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_ROOT / name, tmp_path / name)
    return tmp_path


def test_all_parts_have_one_version() -> None:
    assert differing(_ROOT) == []
    assert triptych.__version__ == triptych_common.__version__ == current_version(_ROOT)


def test_a_version_is_written_to_all_places(copy: Path) -> None:
    before = {name: (copy / name).read_text() for name in versions(copy)}
    write_version(copy, "12.3.4-rc.1")
    assert {version for some in versions(copy).values() for version in some} == {"12.3.4-rc.1"}
    write_version(copy, current_version(_ROOT))
    assert {name: (copy / name).read_text() for name in versions(copy)} == before


def test_a_place_that_differs_is_named(copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    chart = copy / "helm/triptych/Chart.yaml"
    chart.write_text(chart.read_text().replace("\nversion: ", "\nversion: 9"))
    monkeypatch.chdir(copy)
    assert main(["--check"]) == 1
    version = current_version(copy)
    assert capsys.readouterr().out == f"helm/triptych/Chart.yaml has 9{version}, {version} instead of {version}\n"


@pytest.mark.parametrize("bad", ["1.2", "v1.2.3", "1.2.3rc1", "1.2.3+local", ""])
def test_what_is_no_version_for_all_package_managers_is_refused(copy: Path, bad: str) -> None:
    with pytest.raises(ValueError, match="is not a version such as"):
        write_version(copy, bad)
    assert differing(copy) == []

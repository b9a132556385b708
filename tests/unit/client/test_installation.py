from __future__ import annotations

import json
from pathlib import Path

import pytest
from triptych.installation import install_command


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (None, "pip install 'some-package[extra]'"),
        ({"url": "file:///a/my%20checkout", "dir_info": {"editable": True}}, "pip install -e '/a/my checkout[extra]'"),
        ({"url": "file:///a/checkout", "dir_info": {}}, "pip install 'some-package[extra] @ file:///a/checkout'"),
        ({"url": "file:///dist/p.whl", "archive_info": {}}, "pip install 'some-package[extra] @ file:///dist/p.whl'"),
    ],
)
def test_an_extra_comes_from_where_the_package_does(
    source: dict[str, object] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "some_package-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some-package\nVersion: 1.0\n")
    if source is not None:
        (folder / "direct_url.json").write_text(json.dumps(source))
    monkeypatch.syspath_prepend(tmp_path)
    assert install_command("some-package", "extra") == command


def test_a_package_that_is_not_installed_comes_from_the_index() -> None:
    assert install_command("no-such-package", "x") == "pip install 'no-such-package[x]'"

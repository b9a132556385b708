"""Modules of the playground that need no browser, in Node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import triptych_gateway

HERE = Path(__file__).parent
PLAYGROUND = Path(triptych_gateway.__file__).with_name("playground")


@pytest.mark.parametrize("module", [path.name.removesuffix(".test.js") for path in sorted(HERE.glob("*.test.js"))])
def test_in_node(module: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    # Node takes .js files for modules only where a package says so.
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(HERE / f"{module}.test.js", tmp_path)
    shutil.copytree(PLAYGROUND, tmp_path, dirs_exist_ok=True)
    result = subprocess.run([node, "--test", f"{module}.test.js"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "# pass 0" not in result.stdout

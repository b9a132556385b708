"""The frontend as a process: no torch in it, settings refused by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.builders.tokenizer import small_model_dir
from triptych_frontend.settings import FrontendSettings

_PROGRAM = """
import sys
from triptych_frontend.no_torch import forbid_torch
forbid_torch()
from triptych_frontend.service import Frontend
from triptych_frontend.settings import FrontendSettings
frontend = Frontend(FrontendSettings(model=sys.argv[1], port=0))
import transformers
loaded = [name for name in sys.modules if name.split(".")[0] == "torch" and sys.modules[name] is not None]
assert not loaded, loaded
assert not transformers.utils.is_torch_available()
import psutil
print(psutil.Process().memory_info().rss)
"""


def _run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, timeout=120, check=False, env=os.environ | environment
    )


def test_no_torch_is_loaded_even_where_it_is_installed() -> None:
    done = _run("-c", _PROGRAM, str(small_model_dir()))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200e6, "resident bytes"


def test_torch_cannot_be_forbidden_too_late() -> None:
    program = "import sys, types; sys.modules['torch'] = types.ModuleType('torch')\n"
    done = _run("-c", program + "from triptych_frontend.no_torch import forbid_torch; forbid_torch()")
    assert "torch is imported already" in done.stderr


@pytest.mark.parametrize(
    ("args", "environment", "message"),
    [
        (["--model", "no/such/model"], {}, "neither a directory nor a GGUF file nor a built-in name"),
        (["--port", "70000"], {}, "port"),
        (["--max-model-len", "100000"], {}, "max_model_len 100000"),
        ([], {"TRIPTYCH_FRONTEND_MODLE": "x"}, "TRIPTYCH_FRONTEND_MODLE"),
        ([], {"TRIPTYCH_FRONTEND_ENGINE_ADDRESSES": "here"}, "engine_addresses"),
    ],
)
def test_a_bad_setting_stops_the_start_and_is_named(args: list[str], environment: dict[str, str], message: str) -> None:
    model = [] if "--model" in args else ["--model", str(small_model_dir())]
    done = _run("-m", "triptych_frontend", *model, *args, **environment)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_without_tokenizer_is_named(tmp_path: Path) -> None:
    shutil.copytree(small_model_dir(), tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer*"))
    done = _run("-m", "triptych_frontend", "--model", str(tmp_path / "model"))
    assert done.returncode == 1
    assert f"{tmp_path / 'model'} has no tokenizer.json (a fast tokenizer), and none can be made from its files" in done.stderr


def test_a_signal_ends_the_process_with_zero() -> None:
    command = [sys.executable, "-m", "triptych_frontend", "--model", str(small_model_dir()), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first_line = process.stderr.readline()
        process.terminate()
        try:
            rest = process.communicate(timeout=30)[1]
        finally:
            process.kill()  # one that did not end
    assert "listening on" in first_line
    assert process.returncode == 0, rest
    assert "Traceback" not in rest


def test_a_template_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="chat_template"):
        FrontendSettings(chat_template=tmp_path / "missing.jinja")

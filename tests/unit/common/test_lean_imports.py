"""What engines and encoders leave out of torch and transformers, and that it comes when it is needed after all."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAN = """
import sys
from triptych_common.host.torch_env import set_torch_environment
set_torch_environment()
import torch
import transformers.modeling_utils
from transformers.models.llama.modeling_llama import LlamaForCausalLM
"""
IS_DEFERRED = "assert 'torch._dynamo.config' not in sys.modules\n"
#: What loads torch's compiler -> a program that does so.
USES = {
    "a compiled function": "print(torch.compile(lambda x: 2 * x + 1, backend='eager')(torch.ones(2)).tolist() == [3, 3])",
    "a name of the package": "from torch._dynamo import config; print(config is sys.modules['torch._dynamo.config'])",
    "a module that its parent loads": "import torch._dynamo.utils as utils; print(utils is torch._dynamo.utils)",
}


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_services_import_none_of_it():
    imports = "import triptych_engine.executor.in_process, triptych_encoder.service\n"
    named = ("scipy", "torch.distributed.tensor", "torch._dynamo.config")
    assert run(f"{LEAN}{imports}print([name for name in {named} if name in sys.modules])") == "[]"


def test_transformers_files_are_read_once():
    program = """
from pathlib import Path
from transformers.utils.import_utils import create_import_structure_from_path as look
models = Path(transformers.__file__).parent / "models"
print(look(models) is look(str(models)) is look(models / "__init__.py"), len(look(models)) > 100)
"""
    assert run(LEAN + program) == "True True"


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_the_compiler_comes_when_it_is_needed(use: str):
    whole = "assert type(torch._dynamo).__name__ == 'module', type(torch._dynamo)\n"
    decorators = "assert torch._dynamo.disable.__module__ == 'torch._dynamo.decorators'"
    assert run(f"{LEAN}{IS_DEFERRED}{use}\n{whole}{decorators}") == "True"


def test_a_mask_under_vmap_is_made_without_the_compiler():
    mask = """
from transformers.masking_utils import sdpa_mask
made = sdpa_mask(1, q_length=2, kv_length=2, mask_function=lambda b, h, q, k: k <= q, use_vmap=True, allow_is_causal_skip=False)
assert made[0, 0].tolist() == [[True, False], [True, True]], made
"""
    assert run(f"{LEAN}{mask}{IS_DEFERRED}print('made')") == "made"


def test_what_was_imported_before_stays():
    before = "import torch, torch._dynamo\nwhole = torch._dynamo.disable\n"
    assert run(f"{before}{LEAN}print(torch._dynamo.disable is whole)") == "True"


def test_a_compiler_that_cannot_be_loaded_is_tried_again():
    fails = """
sys.modules["torch._dynamo.config"] = None  # its import fails
try:
    torch._dynamo.optimize
except ImportError:
    assert torch._dynamo.disable(run := lambda: 1) is run, "models may still be imported"
    del sys.modules["torch._dynamo.config"]
"""
    assert run(f"{LEAN}{fails}print(callable(torch._dynamo.optimize))") == "True"

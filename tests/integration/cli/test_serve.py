"""`triptych serve` as a person runs it: real processes, the real default model."""

from __future__ import annotations

from typing import Any

import httpx
import psutil
import pytest
from support.stack import serving
from triptych_cli.stack.service_flags import parse_settings
from triptych_common.settings import ServiceSettings

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


def test_a_model_that_cannot_be_served_ends_it_with_the_reason() -> None:
    with serving("--max-model-len", "100000") as server:
        assert server.process.wait(timeout=240) == 1
        server.wait_for(r"max_model_len 100000 is more than the model's context of 8192 tokens")
        server.wait_for(r"triptych: (engine|frontend) ended before it was ready \(exit code 1\)")
        assert server.log.count("starting") == 0


@pytest.mark.long
def test_a_command_line_of_vllm_starts_services_with_its_settings() -> None:
    flags = (
        "--model smollm2-135m-instruct --served-model-name m --dtype float --max-model-len 1k --max-num-seqs 5 --swap-space 4 "
        "--max-num-batched-tokens 64 --kv-cache-memory-bytes 64M --no-enable-prefix-caching --enforce-eager --host 127.0.0.1 "
        "--tensor-parallel-size 1 --enable-auto-tool-choice --tool-call-parser hermes --api-key s3cret"
    )
    with serving(*flags.split()) as server:
        url = server.wait_until_started()
        server.wait_for("triptych: --swap-space changes nothing: .* --engine.kv-offloading-memory")
        settings = {name: _settings(name, process) for name, process in server.services().items()}
        engine: Any = settings["engine"]
        assert (engine.dtype, engine.max_num_seqs, engine.max_num_batched_tokens, engine.max_model_len) == ("float32", 5, 64, 1000)
        assert (engine.cuda_graphs, engine.enable_prefix_caching, engine.kv_cache_memory) == (False, False, 64 << 20)
        assert getattr(settings["frontend"], "tool_call_parser") == "hermes"  # noqa: B009
        assert all("s3cret" not in " ".join(process.cmdline()) for process in server.services().values())
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
        models = httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer s3cret"}, trust_env=False).json()["data"]
        assert [(model["id"], model["max_model_len"]) for model in models] == [("m", 1000)]
        assert "s3cret" not in server.log


def _settings(name: str, process: psutil.Process) -> ServiceSettings:
    """What a running process made of its command line."""
    return parse_settings(name, process.cmdline()[process.cmdline().index(f"triptych_{name}") + 1 :])

"""What the command line accepts, and how it refuses."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from support.builders.multimodal import FAMILIES, build_checkpoint
from triptych.installation import install_command
from triptych_cli.errors import CommandError
from triptych_cli.main import app
from triptych_cli.manager.memory import Needs
from triptych_cli.manager.prepared import Checkpoint, Prepared
from triptych_cli.serve import announce, curl_line, warn_of_little_memory
from triptych_cli.stack import ports as ports_of_host
from triptych_cli.stack.options import ServeOptions
from triptych_cli.stack.plan import needs_encoder, plan
from triptych_cli.stack.ports import PortClaim, check_ports, connect_host, free_port
from triptych_cli.stack.service import port_claims, spec
from triptych_cli.stack.service_flags import parse_settings, split_service_args
from triptych_common import __version__
from triptych_common.model.store import has_towers
from typer.testing import CliRunner


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, args, catch_exceptions=False)
    return result.exit_code, result.output


def test_version_is_printed() -> None:
    assert run("--version") == (0, f"{__version__}\n")


def test_every_service_is_told_of_the_collector() -> None:
    endpoint = "http://collector:4317"
    services = plan(ServeOptions("some/model", otlp_traces_endpoint=endpoint), {}, with_encoder=True)
    assert {service.kind: service.settings.otlp_traces_endpoint for service in services} == dict.fromkeys(
        ("encoder", "engine", "frontend", "gateway"), endpoint
    )


@pytest.mark.parametrize("endpoint", ["collector:4317", "grpc://collector:4317", "http://", "http://collector:4317/v1/traces", ""])
def test_a_collector_is_named_by_its_url(endpoint: str) -> None:
    with pytest.raises(CommandError, match="otlp_traces_endpoint"):
        parse_settings("engine", ["--otlp-traces-endpoint", endpoint])


@pytest.mark.parametrize("ratio", ["-0.1", "1.1", "nan", "some"])
def test_a_share_of_requests_is_between_none_and_all(ratio: str) -> None:
    for service in ("gateway", "frontend"):
        with pytest.raises(CommandError, match="trace_sampling_ratio"):
            parse_settings(service, ["--trace-sampling-ratio", ratio])


@pytest.mark.parametrize("service", ["engine", "encoder", "frontend", "gateway"])
def test_a_single_service_shows_its_own_flags(service: str) -> None:
    code, output = run(service, "--help")
    assert code == 0
    assert output.startswith(f"usage: triptych {service} ")
    assert "--log-level" in output


def test_a_service_whose_packages_are_missing_says_what_to_install() -> None:
    program = "import sys; sys.modules['uvicorn'] = None; from triptych_cli.main import app; app()"
    done = subprocess.run([sys.executable, "-c", program, "gateway"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    command = install_command("triptych-server", "gateway")
    assert done.stderr == f"triptych: the gateway needs uvicorn, which is not installed; run: {command}\n"


def test_service_flags_are_taken_out_with_their_values() -> None:
    rest, flags = split_service_args(
        ["--gateway.no-access-log", "some/model", "--frontend.max-live-requests", "7", "--port=9", "--gateway.api-key=a=b"]
    )
    assert rest == ["some/model", "--port=9"]
    assert flags == {
        "engine": [],
        "encoder": [],
        "frontend": ["--max-live-requests", "7"],
        "gateway": ["--no-access-log", "--api-key=a=b"],
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--frontend.max-live-request", "7"], "did you mean --frontend.max-live-requests?"),
        (["--gateway.zzz"], "the gateway has no such setting; `triptych gateway --help` lists them"),
        (["--gateway.port"], "--gateway.port needs a value"),
        (["--gateway.port", "70000"], "gateway: bad settings: port: Input should be less than or equal to 65535 (given: '70000')"),
        (["--encoder.max-queue", "0"], "encoder: bad settings: max_queue: Input should be greater than or equal to 1"),
        (["--frontend-port", "65500"], "leaves no room for the control port"),
        (["--max-model-len", "0"], "--max-model-len: '0' is not a number of at least 1"),
        (["--log-level", "LOUD"], "'LOUD' is not one of"),
        (["--quantization", "int3"], "'int3' is not one of none, int8, int4"),
    ],
)
def test_bad_flags_are_refused_before_anything_starts(args: list[str], message: str) -> None:
    code, output = run("serve", *args)
    assert code == 2
    assert message in output


def test_services_get_each_others_addresses_and_their_own_flags() -> None:
    options = ServeOptions(
        model="some/model", port=9000, frontend_port=7001, max_model_len=512, quantization="int8", log_level="DEBUG"
    )
    given = {"engine": ["--port", "7003"], "gateway": ["--no-access-log"]}
    engine, frontend, gateway = plan(options, given, with_encoder=False)
    assert (engine.name, frontend.name, gateway.name) == ("engine", "frontend", "gateway")
    assert engine.args[:2] == ("--port", "7003")
    assert engine.address == "127.0.0.1:7003"
    assert "--engine-addresses 127.0.0.1:7003" in " ".join(frontend.args)
    assert "--frontend-addresses 127.0.0.1:7001" in " ".join(gateway.args)
    assert "--max-model-len 512" in " ".join(engine.args)
    assert "--max-model-len" not in gateway.args
    assert ["--quantization" in service.args for service in (engine, frontend, gateway)] == [True, False, False]
    assert all("--log-level DEBUG" in " ".join(service.args) for service in (engine, frontend, gateway))


def test_the_frontend_is_told_of_the_encoder() -> None:
    options = ServeOptions(model="some/model", encoder_port=7002, served_model_name="m")
    encoder, engine, frontend, gateway = plan(options, {"encoder": ["--cache-memory", "64M"]}, with_encoder=True)
    assert (encoder.name, encoder.address) == ("encoder", "127.0.0.1:7002")
    assert all("--encoder-addresses 127.0.0.1:7002" in " ".join(service.args) for service in (engine, frontend))
    assert "encoder" not in " ".join(gateway.args)
    assert encoder.args[:2] == ("--cache-memory", "64M")
    assert "--served-model-name m" in " ".join(encoder.args)
    assert not spec(encoder).is_essential
    assert all(spec(other).is_essential for other in (engine, frontend, gateway))


@pytest.mark.parametrize(
    ("num_cores", "encoder_args", "left"),
    [(2, [], "1"), (8, [], "4"), (1, [], "1"), (8, ["--num-threads", "2"], "6")],
)
def test_the_engine_leaves_the_encoder_its_cores(
    num_cores: int, encoder_args: list[str], left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triptych_cli.stack.plan.num_usable_cores", lambda: num_cores)
    _, engine, *_ = plan(ServeOptions("some/model"), {"encoder": encoder_args}, with_encoder=True)
    assert f"--num-threads-while-encoding {left}" in " ".join(engine.args)
    alone, *_ = plan(ServeOptions("some/model"), {"encoder": encoder_args}, with_encoder=False)
    assert "--num-threads-while-encoding" not in alone.args


def test_what_the_user_says_about_threads_wins() -> None:
    given = {"engine": ["--num-threads-while-encoding", "3"]}
    _, engine, *_ = plan(ServeOptions("some/model"), given, with_encoder=True)
    assert engine.args.count("--num-threads-while-encoding") == 1
    assert engine.args[:2] == ("--num-threads-while-encoding", "3")


def test_several_of_a_kind_have_ports_of_their_own_and_are_all_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_cli.stack.plan.num_usable_cores", lambda: 8)
    options = ServeOptions("some/model", engines=2, encoders=2, frontends=3)
    services = {service.name: service for service in plan(options, {}, with_encoder=True)}
    assert list(services) == [
        "encoder-1", "encoder-2", "engine-1", "engine-2", "frontend-1", "frontend-2", "frontend-3", "gateway"
    ]  # fmt: skip
    frontend, gateway = services["frontend-2"], services["gateway"]
    assert "--engine-addresses 127.0.0.1:50053,127.0.0.1:50063" in " ".join(frontend.args)
    assert "--encoder-addresses 127.0.0.1:50052,127.0.0.1:50062" in " ".join(frontend.args)
    assert "--frontend-addresses 127.0.0.1:50054,127.0.0.1:50064,127.0.0.1:50074" in " ".join(gateway.args)
    assert frontend.settings.resolved_control_port == 50164  # type: ignore[attr-defined]
    assert all("--num-threads 4" in " ".join(services[name].args) for name in ("engine-1", "engine-2"))
    check = [claim.port for claim in port_claims(list(services.values()))]
    assert len(set(check)) == len(check)


@pytest.mark.parametrize(
    ("config", "needs_one"),
    [
        ({"model_type": "llama"}, False),
        ({"model_type": "llava", "vision_config": {"hidden_size": 8}}, True),
        ({"model_type": "qwen2_audio", "audio_config": {"d_model": 8}}, True),
        ({"model_type": "qwen2_5_omni", "thinker_config": {"audio_config": {"d_model": 8}}}, True),
        ({"model_type": "gemma3_text", "vision_config": None}, False),
        ({"model_type": "phi4_multimodal", "vision_config": {"hidden_size": 8}}, False),
    ],
)
def test_models_with_towers_need_an_encoder(config: dict[str, object], needs_one: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert needs_encoder(tmp_path, ServeOptions("some/model"), {}) == needs_one
    assert not needs_encoder(tmp_path, ServeOptions("some/model"), {"frontend": ["--encoder-addresses", "encoders.example:50052"]})


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_with_towers_is_known_by_its_configuration(family: str, tmp_path: Path) -> None:
    assert has_towers(build_checkpoint(family, tmp_path))


def test_metrics_ports_are_checked_too() -> None:
    services = plan(ServeOptions("some/model"), {"encoder": ["--metrics-port", "7777"]}, with_encoder=True)
    assert PortClaim("encoder (metrics)", "127.0.0.1", 7777, "--encoder.metrics-port") in port_claims(services)


def test_moving_the_gateway_moves_nothing_else() -> None:
    ports = {claim.service: claim.port for claim in port_claims(plan(ServeOptions("some/model", port=9000), {}, with_encoder=True))}
    assert ports == {
        "engine": 50053,
        "engine (control)": 50153,
        "encoder": 50052,
        "encoder (control)": 50152,
        "frontend": 50054,
        "frontend (control)": 50154,
        "gateway": 9000,
        "gateway (gRPC)": 50051,
    }


def test_port_zero_is_settled_before_the_others_are_told() -> None:
    engine, frontend, _ = plan(ServeOptions("some/model", engine_port=0), {}, with_encoder=False)
    assert engine.settings.port > 0
    assert f"--engine-addresses {engine.address}" in " ".join(frontend.args)
    assert parse_settings("engine", engine.args) == engine.settings


def test_a_taken_port_is_told_with_service_and_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, output = run("serve", "--port", str(port), "--grpc-port", "0", "--frontend-port", "0", "--engine-port", "0")
    assert code == 1
    assert output == f"triptych: port {port} of the gateway is taken (127.0.0.1:{port}); choose another: --port\n"


def test_all_taken_ports_are_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = [listener.getsockname()[1] for listener in (one, two)]
        code, output = run(
            "serve", "--port", str(ports[0]), "--engine-port", str(ports[1]), "--grpc-port", "0", "--frontend-port", "0"
        )
    assert code == 1
    told = {f"{ports[0]} of the gateway (--port)", f"{ports[1]} of the engine (--engine-port)"}
    assert set(output.removeprefix("triptych: ports are taken: ").partition(";")[0].split(", ")) == told


def test_the_control_port_of_a_taken_port_is_not_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        main, control = (listener.getsockname()[1] for listener in (one, two))
        claims = [PortClaim("engine", "127.0.0.1", main, "--a"), PortClaim("engine (control)", "127.0.0.1", control, "--b")]
        with pytest.raises(CommandError, match=rf"port {main} of the engine is taken .*; choose another: --a$"):
            check_ports(claims)
        with pytest.raises(CommandError, match=rf"port {control} of the engine \(control\) is taken .*; choose another: --b$"):
            check_ports(claims[1:])


def test_a_free_port_is_given_once() -> None:
    ports = [free_port("127.0.0.1") for _ in range(1000)]
    assert len(set(ports)) == 1000, "or one service's control port is another's port"
    assert max(ports) < 32_768, "or a connection may take one"


def test_a_port_that_somebody_has_bound_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        monkeypatch.setattr(ports_of_host, "_PORTS", range(port, port + 1))
        with pytest.raises(CommandError, match=f"no port of 127.0.0.1 from {port} to {port} is free"):
            free_port("127.0.0.1")
        monkeypatch.setattr(ports_of_host, "_PORTS", range(port, port + 20))
        assert port < free_port("127.0.0.1") < port + 20


def test_two_services_cannot_have_one_port() -> None:
    port = free_port("127.0.0.1")
    with pytest.raises(CommandError, match=rf"port {port} is wanted by both the engine \(--a\) and the gateway \(--b\)"):
        check_ports([PortClaim("engine", "127.0.0.1", port, "--a"), PortClaim("gateway", "127.0.0.1", port, "--b")])


def test_a_host_that_does_not_exist_is_told() -> None:
    with pytest.raises(CommandError, match=r"the gateway cannot listen on 192\.0\.2\.1:\d+: .*; choose another port: --port"):
        check_ports([PortClaim("gateway", "192.0.2.1", free_port("127.0.0.1"), "--port")])


@pytest.mark.parametrize(
    ("listen", "connect"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("example.org", "example.org")]
)
def test_where_a_listener_is_reached(listen: str, connect: str) -> None:
    assert connect_host(listen) == connect


@pytest.mark.parametrize(
    ("flags", "generates", "transcribes", "is_told"),
    [([], True, False, True), (["--no-playground"], True, False, False), ([], False, False, False), ([], True, True, False)],
)
def test_the_playground_is_announced(
    flags: list[str], generates: bool, transcribes: bool, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ServeOptions("some/model", port=9000)
    *services, gateway = plan(options, {"gateway": flags}, with_encoder=False)
    announce([Prepared(options, generates, transcribes, False, Needs(0, 0), services)], gateway, 1.0)
    out = capsys.readouterr().out
    assert ("open http://127.0.0.1:9000 in a browser" in out) == is_told
    assert ("/v1/audio/transcriptions -F model=some/model -F file=@speech.wav" in out) == transcribes


@pytest.mark.parametrize(("available", "is_warned"), [(8_000_000_000, False), (3_000_000_000, True)])
def test_little_memory_is_told_before_a_model_is_loaded(available: int, is_warned: bool) -> None:
    out = io.StringIO()
    checkpoint = Checkpoint(ServeOptions("org/a[b]"), True, False, False, Needs(0, 4_000_000_000))
    warn_of_little_memory(checkpoint, available, Console(file=out))
    assert ("org/a[b] needs about 4.0 GB of memory, and 3.0 GB are free: the system" in out.getvalue()) == is_warned


@pytest.mark.parametrize(
    ("flags", "variable"),
    [(["--api-keys-file", "keys.json"], "TRIPTYCH_API_KEY"), (["--api-key", "k"], "TRIPTYCH_GATEWAY_API_KEY")],
)
def test_the_announced_request_has_the_variable_of_the_key(
    flags: list[str], variable: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *services, gateway = plan(ServeOptions("some/model"), {"gateway": flags}, with_encoder=False)
    announce([Prepared(ServeOptions("some/model"), True, False, False, Needs(0, 0), services)], gateway, 1.0)
    assert f'-H "Authorization: Bearer ${variable}"' in capsys.readouterr().out


def test_the_curl_line_trusts_the_authority_of_the_certificate() -> None:
    line = curl_line("https://127.0.0.1:8000", "m", authority=Path("my certs/https/ca.crt"))
    assert line.startswith("curl --cacert 'my certs/https/ca.crt' https://127.0.0.1:8000/v1/")


def test_the_curl_line_shows_no_key() -> None:
    assert '"Authorization: Bearer $TRIPTYCH_API_KEY"' in curl_line("http://127.0.0.1:8000", "m", key="TRIPTYCH_API_KEY")
    assert "Authorization" not in curl_line("http://127.0.0.1:8000", "m")

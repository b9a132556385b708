"""Who may call what, for each method of the contracts: with each role, with certificates that are no good, and with none.

The cases come from the protos. A new method without a rule fails here, and its service does not start.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from support.certificates import EXPIRED, authority, issue, tls, write_role
from triptych.errors import StartupError
from triptych.status import from_rpc_error
from triptych.v1 import control_pb2, detokenize_pb2, encoder_pb2, engine_pb2, generation_pb2, kv_pb2, preprocess_pb2
from triptych_common.rpc.channels import SERVER_OPTIONS
from triptych_common.rpc.security.access import RULES, AccessInterceptor, check_rules
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls

_MODULES = (
    control_pb2, detokenize_pb2, encoder_pb2, engine_pb2, generation_pb2, kv_pb2, preprocess_pb2, health_pb2, reflection_pb2
)  # fmt: skip
_SERVICES: list[ServiceDescriptor] = [service for module in _MODULES for service in module.DESCRIPTOR.services_by_name.values()]
_METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method for service in _SERVICES for method in service.methods
}
_FRONTEND = {Role.GATEWAY, Role.CLIENT, Role.OPERATOR}
#: The issue's table, by service, and by method where one differs. Written apart from the rules, which it checks.
_EXPECTED = {
    "triptych.v1.GenerationService": _FRONTEND,
    "triptych.v1.PreprocessService": _FRONTEND,
    "triptych.v1.DetokenizeService": _FRONTEND,
    "triptych.v1.EncoderService": {Role.FRONTEND, Role.ENGINE},
    "triptych.v1.EngineService": {Role.FRONTEND},
    "triptych.v1.EngineService/Describe": {Role.FRONTEND, Role.ENGINE},
    "triptych.v1.KvService": {Role.ENGINE},
    "triptych.v1.ControlService": {Role.OPERATOR},
    "grpc.health.v1.Health": {*Role},
    "grpc.reflection.v1alpha.ServerReflection": {Role.CLIENT, Role.OPERATOR},
}


def test_all_contracts_are_here() -> None:
    protos = Path(__file__).parents[3] / "protos" / "triptych" / "v1"
    lines = [line for path in protos.glob("*.proto") for line in path.read_text().splitlines()]
    declared = {line.split()[1] for line in lines if line.startswith("service ")}
    # That one is only at the gateway, behind keys, and at a socket of one user.
    assert declared - {"ModelManagerService"} == {
        service.name for service in _SERVICES if service.full_name.startswith("triptych.v1.")
    }


@pytest.mark.parametrize("method", _METHODS)
def test_each_method_has_a_rule(method: str) -> None:
    assert method in RULES


def test_a_service_with_a_method_without_a_rule_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    check_rules(_SERVICES)
    monkeypatch.delitem(RULES, "/triptych.v1.EncoderService/Evict")  # type: ignore[arg-type]
    with pytest.raises(StartupError, match=r"no rule says who may call triptych\.v1\.EncoderService/Evict"):
        check_rules(_SERVICES)


class EveryMethod(grpc.GenericRpcHandler):
    """Answers each method of the contracts with one empty message."""

    def __init__(self) -> None:
        self.num_calls = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = _METHODS.get(handler_call_details.method)
        if method is None:
            return None
        answer = GetMessageClass(method.output_type)()

        async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
            self.num_calls += 1
            return answer

        async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            self.num_calls += 1
            yield answer

        make = getattr(grpc, f"{_arity(method.client_streaming)}_{_arity(method.server_streaming)}_rpc_method_handler")
        handler: grpc.RpcMethodHandler = make(
            stream if method.server_streaming else unary,
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        return handler


def _arity(streams: bool) -> str:
    return "stream" if streams else "unary"


class Guarded:
    """A server with mutual TLS in front of `EveryMethod`."""

    def __init__(self, own: Tls, port: int, methods: EveryMethod) -> None:
        self.tls = own
        self.address = f"127.0.0.1:{port}"
        self.methods = methods

    async def call(self, method: str, credentials: grpc.ChannelCredentials | None) -> None:
        """Make a call. Raises AioRpcError."""
        options = [("grpc.ssl_target_name_override", Role.ENGINE.dns_name), ("grpc.use_local_subchannel_pool", 1)]
        channel = (
            grpc.aio.insecure_channel(self.address, options)
            if credentials is None
            else grpc.aio.secure_channel(self.address, credentials, options)
        )
        async with channel:
            for _ in range(5):
                try:
                    return await call(channel, method)
                except grpc.aio.AioRpcError as error:
                    # If a stream is refused before the client has sent its message, grpc says only that it could not send.
                    if not (_METHODS[method].client_streaming and error.details() == "Internal error from Core"):
                        raise
            pytest.fail(f"{method} had no status of the server in five calls")


async def call(channel: grpc.aio.Channel, method: str, *, sends: bool = True) -> None:
    """Call a method with one empty message, or a stream of one.

    Args:
        sends: whether a stream has its message. grpc.aio may lose the status of a call that is refused while its client sends
            (grpc/grpc#36066).
    """
    descriptor = _METHODS[method]
    request = GetMessageClass(descriptor.input_type)()
    make = getattr(channel, f"{_arity(descriptor.client_streaming)}_{_arity(descriptor.server_streaming)}")
    started = make(
        method,
        request_serializer=GetMessageClass(descriptor.input_type).SerializeToString,
        response_deserializer=GetMessageClass(descriptor.output_type).FromString,
    )((iter([request]) if sends else None) if descriptor.client_streaming else request, timeout=20)
    if descriptor.server_streaming:
        assert [response async for response in started]
    else:
        await started


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    own, methods = tls(tmp_path, Role.ENGINE), EveryMethod()
    server = grpc.aio.server(interceptors=[AccessInterceptor(own)], options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((methods,))
    port = server.add_secure_port("127.0.0.1:0", own.server_credentials())
    await server.start()
    yield Guarded(own, port, methods)
    await server.stop(None)


def _credentials(certificate: Any) -> grpc.ChannelCredentials:
    chain = b"".join(pem.bytes() for pem in certificate.cert_chain_pems)
    return grpc.ssl_channel_credentials(authority("own").cert_pem.bytes(), certificate.private_key_pem.bytes(), chain)


def _bad_credentials() -> Iterator[tuple[str, grpc.ChannelCredentials | None]]:
    name = Role.FRONTEND.dns_name
    yield "no TLS", None
    yield "no certificate", grpc.ssl_channel_credentials(authority("own").cert_pem.bytes())
    yield "another authority", _credentials(issue(name, ca="other"))
    yield "expired", _credentials(issue(name, **EXPIRED))


async def test_no_method_lets_in_who_has_no_good_certificate(guarded: Guarded) -> None:
    for what, credentials in _bad_credentials():
        for method in _METHODS:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await guarded.call(method, credentials)
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN), (what, method)
    assert guarded.methods.num_calls == 0
    assert _metric(guarded.tls, "handshakes") >= 4 * len(_METHODS)
    assert _metric(guarded.tls, "connections") == 0


@pytest.mark.parametrize("role", Role)
async def test_each_method_lets_in_the_roles_of_the_table_and_no_other(
    guarded: Guarded, tmp_path: Path, role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    options = [("grpc.ssl_target_name_override", Role.ENGINE.dns_name)]
    refused = []
    async with grpc.aio.secure_channel(guarded.address, tls(tmp_path, role).channel_credentials, options) as channel:
        for method in _METHODS:
            if role in _EXPECTED.get(method[1:], _EXPECTED[method.split("/")[1]]):
                await call(channel, method)
                continue
            refused.append(method)
            for _ in range(2):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(channel, method, sends=False)
                assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
                error = from_rpc_error(caught.value)
                assert error.reason == "PERMISSION_DENIED"
                assert method[1:] in error.message
                assert f"it is {role}" in error.message
    assert refused
    assert guarded.methods.num_calls == len(_METHODS) - len(refused)
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == len(refused), "once for each method, not for each call"
    assert all(f"role {role}" in line for line in logged)
    assert _metric(guarded.tls, "refused_calls") == 2 * len(refused)
    assert _metric(guarded.tls, "connections") == 1


async def test_a_certificate_without_a_role_may_ask_for_health_and_nothing_else(guarded: Guarded) -> None:
    credentials = _credentials(issue("somebody.example", common_name="somebody"))
    for method in _METHODS:
        if method.startswith("/grpc.health."):
            await guarded.call(method, credentials)
            continue
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await guarded.call(method, credentials)
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert "it is no role (somebody.example), common name 'somebody'" in str(caught.value.details())


async def test_a_client_refuses_a_service_of_another_role(guarded: Guarded, tmp_path: Path) -> None:
    options = [("grpc.ssl_target_name_override", Role.ENCODER.dns_name)]
    async with grpc.aio.secure_channel(guarded.address, tls(tmp_path, Role.FRONTEND).channel_credentials, options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, "/triptych.v1.EngineService/Describe")
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert guarded.methods.num_calls == 0


def _metric(own: Tls, name: str) -> float:
    values = {sample.name: sample.value for family in own.families("x") for sample in family.samples}
    return values[f"x_tls_{name}_total"] if f"x_tls_{name}_total" in values else values[f"x_{name}_total"]


def test_the_servers_own_certificate_is_in_the_metrics(tmp_path: Path) -> None:
    own = Tls(write_role(tmp_path, Role.ENGINE), Role.ENGINE)
    (expiry,) = (family for family in own.families("triptych_engine") if family.name.endswith("_seconds"))
    assert expiry.name == "triptych_engine_certificate_expiry_timestamp_seconds"
    assert expiry.samples[0].value == own.watched.current.expiry_s

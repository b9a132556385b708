"""The mock server: frontend, encoder and engine on one port."""

from __future__ import annotations

import asyncio
import hashlib

import grpc
from triptych.errors import StartupError
from triptych.mock.v1 import mock_pb2, mock_pb2_grpc
from triptych.v1 import (
    common_pb2,
    detokenize_pb2,
    detokenize_pb2_grpc,
    encoder_pb2,
    encoder_pb2_grpc,
    engine_pb2,
    engine_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    preprocess_pb2,
    preprocess_pb2_grpc,
)
from triptych_common.rpc.control import cannot_sleep
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_common.rpc.server import ServiceServer, run_service

from triptych_mock.media import KnownMedia
from triptych_mock.play import Player
from triptych_mock.rpc.access import KeyInterceptor
from triptych_mock.rpc.encoder import EncoderServicer
from triptych_mock.rpc.engine import EngineServicer
from triptych_mock.rpc.generation import GenerationServicer
from triptych_mock.rpc.seen import CallLog, SeenInterceptor
from triptych_mock.rpc.stages import StagesServicer
from triptych_mock.settings import MockSettings
from triptych_mock.vocabulary import VOCAB_SIZE, Vocabulary

_MAX_MODEL_LEN = 131_072
_MODULES = {
    generation_pb2: "GenerationService",
    preprocess_pb2: "PreprocessService",
    detokenize_pb2: "DetokenizeService",
    encoder_pb2: "EncoderService",
    engine_pb2: "EngineService",
    mock_pb2: "MockService",
}


class MockServer:
    """The server. It also answers its own control port.

    Raises:
        StartupError: when a file of TLS cannot be used; by `start`, when a port is taken.
    """

    def __init__(self, settings: MockSettings) -> None:
        self._settings = settings
        self._log = CallLog()
        interceptors: list[grpc.aio.ServerInterceptor] = [SeenInterceptor(self._log)]
        if settings.api_key is not None:
            interceptors.append(KeyInterceptor(settings.api_key.get_secret_value()))
        services = [module.DESCRIPTOR.services_by_name[name] for module, name in _MODULES.items()]
        self.server = ServiceServer(
            "mock",
            settings,
            services,
            self._register,
            self,
            interceptors=interceptors,
            tls=Tls.of(settings.tls_dir, Role.FRONTEND),
            credentials=_credentials(settings),
        )
        self._is_draining = False

    def _register(self, server: grpc.aio.Server) -> None:
        model, vocabulary, known_media = self.model_info(), Vocabulary(), KnownMedia()
        player, identity = Player(model.name, vocabulary, known_media), self.server.identity
        generation = GenerationServicer(model, player, known_media, self._log, identity)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, server)
        stages = StagesServicer(player, vocabulary, _MAX_MODEL_LEN)
        preprocess_pb2_grpc.add_PreprocessServiceServicer_to_server(stages, server)
        detokenize_pb2_grpc.add_DetokenizeServiceServicer_to_server(stages, server)
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(EncoderServicer(model, identity), server)
        engine_pb2_grpc.add_EngineServiceServicer_to_server(EngineServicer(model, vocabulary, identity), server)
        mock_pb2_grpc.add_MockServiceServicer_to_server(self._log, server)

    async def start(self) -> None:
        """Listen, and tell the address if a file was named for it."""
        await self.server.start()
        await self.server.health.set_ready(True)
        file = self._settings.address_file
        if file is not None:
            temporary = file.with_name(f"{file.name}.new")
            temporary.write_text(f"{self._settings.host}:{self.server.port}")
            temporary.replace(file)

    @property
    def state(self) -> common_pb2.ServerState:
        return common_pb2.SERVER_STATE_DRAINING if self._is_draining else common_pb2.SERVER_STATE_SERVING

    @property
    def num_live_requests(self) -> int:
        return self._log.num_live

    def model_info(self) -> common_pb2.ModelInfo:
        name = self._settings.served_model_name
        tasks = [
            common_pb2.TASK_GENERATE,
            common_pb2.TASK_EMBED,
            common_pb2.TASK_TOKEN_EMBED,
            common_pb2.TASK_CLASSIFY,
            common_pb2.TASK_SCORE,
        ]
        modalities = [common_pb2.MODALITY_IMAGE, common_pb2.MODALITY_AUDIO, common_pb2.MODALITY_VIDEO]
        capabilities = common_pb2.Capabilities(
            tasks=tasks, modalities=modalities, max_choices=128, max_logprobs=20, tools=True, reasoning=True
        )
        return common_pb2.ModelInfo(
            name=name,
            fingerprint=hashlib.sha256(name.encode()).hexdigest(),
            architecture="Mock",
            max_model_len=_MAX_MODEL_LEN,
            vocab_size=VOCAB_SIZE,
            capabilities=capabilities,
        )

    async def drain(self, timeout_s: float) -> bool:
        self._is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._log.until_idle()
        except TimeoutError:
            return False
        return True

    async def reset_cache(self) -> int:
        return 0

    async def sleep(self, timeout_s: float, *, unload: bool = False) -> int:
        raise cannot_sleep("mock")

    async def wake_up(self) -> None:
        self._is_draining = False


def _credentials(settings: MockSettings) -> grpc.ServerCredentials | None:
    if settings.tls_certificate is None or settings.tls_private_key is None:
        return None
    try:
        pair = (settings.tls_private_key.read_bytes(), settings.tls_certificate.read_bytes())
        client_ca = settings.tls_client_ca.read_bytes() if settings.tls_client_ca else None
    except OSError as error:
        raise StartupError(f"cannot read {error.filename}: {error.strerror}") from error
    return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)


def run(settings: MockSettings) -> None:
    """Serve until told to stop."""

    async def main(stop: asyncio.Event) -> None:
        mock = MockServer(settings)
        await mock.start()
        await stop.wait()
        await mock.server.stop()

    run_service("mock", settings, main)

"""Channels for the stubs of single stages, keys on them, and TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
import trustme
from support.mock import mock_server
from triptych import AsyncClient, Client, TLSConfig, aconnect, connect
from triptych.errors import ServiceUnavailableError
from triptych.v1 import common_pb2, encoder_pb2, encoder_pb2_grpc, generation_pb2, generation_pb2_grpc

_PICTURE = b"\x89PNG\r\n\x1a\n picture"


def _media() -> common_pb2.MediaItem:
    return common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, data=_PICTURE)


async def test_a_key_is_sent_on_a_channel_of_asyncio() -> None:
    async with mock_server(api_key="secret") as mock:
        async with aconnect(mock.address) as channel:
            with pytest.raises(grpc.RpcError):
                await encoder_pb2_grpc.EncoderServiceStub(channel).Describe(encoder_pb2.DescribeRequest())
        async with aconnect(mock.address, api_key="secret") as channel:
            scope = await encoder_pb2_grpc.EncoderServiceStub(channel).Describe(encoder_pb2.DescribeRequest())
            assert scope.instance.id
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            message = generation_pb2.ChatMessage(role="user", content=[generation_pb2.ContentPart(text="one two")])
            request = generation_pb2.ChatStreamRequest(chat=generation_pb2.ChatRequest(messages=[message]))
            assert len([response async for response in stub.ChatStream(request)]) == 2
            pieces = [generation_pb2.UploadMediaRequest(header=generation_pb2.UploadMediaHeader(num_bytes=1))]
            pieces.append(generation_pb2.UploadMediaRequest(data=b"x"))
            assert (await stub.UploadMedia(iter(pieces))).upload_id


async def test_a_key_is_sent_on_a_channel_for_threads() -> None:
    async with mock_server(api_key="secret") as mock:

        def talk() -> None:
            with connect(mock.address, api_key="secret") as channel:
                stub = generation_pb2_grpc.GenerationServiceStub(channel)
                assert stub.ListModels(generation_pb2.ListModelsRequest()).models
                message = generation_pb2.ChatMessage(role="user", content=[generation_pb2.ContentPart(text="one two")])
                request = generation_pb2.ChatStreamRequest(chat=generation_pb2.ChatRequest(messages=[message]))
                assert len(list(stub.ChatStream(request))) == 2
                pieces = [generation_pb2.UploadMediaRequest(header=generation_pb2.UploadMediaHeader(num_bytes=1))]
                pieces.append(generation_pb2.UploadMediaRequest(data=b"x"))
                assert stub.UploadMedia(iter(pieces)).upload_id

        await asyncio.to_thread(talk)


async def test_tls_by_files_with_a_certificate_of_the_client(tmp_path: Path) -> None:
    authority = trustme.CA()
    server, client = authority.issue_cert("triptych.example"), authority.issue_cert("client.example")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, certificate in (("server", server), ("client", client)):
        certificate.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        certificate.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    settings = {"tls_certificate": tmp_path / "server.pem", "tls_private_key": tmp_path / "server.key"}
    own = TLSConfig(
        root_certificates=tmp_path / "ca.pem",
        certificate=tmp_path / "client.pem",
        private_key=tmp_path / "client.key",
        server_name="triptych.example",
    )
    anonymous = TLSConfig(root_certificates=tmp_path / "ca.pem", server_name="triptych.example")
    async with mock_server(**settings, tls_client_ca=tmp_path / "ca.pem") as mock:
        async with AsyncClient(mock.address, tls=own, api_key="unused") as aclient:
            assert (await aclient.chat("hello")).choices[0].text == "hello"
        with await asyncio.to_thread(Client, mock.address, tls=own) as sync:
            assert (await asyncio.to_thread(sync.chat, "hello")).choices[0].text == "hello"
        async with AsyncClient(mock.address, tls=anonymous, timeout_s=5) as aclient:
            with pytest.raises(ServiceUnavailableError):
                await aclient.chat("hello")
    with pytest.raises(FileNotFoundError):
        Client("127.0.0.1:1", tls=TLSConfig(root_certificates=tmp_path / "none.pem"))
    with pytest.raises(ValueError, match="private_key"):
        TLSConfig(certificate="a.pem")

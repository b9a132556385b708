"""How busy this frontend's engines and encoders are, for GenerationService.GetLoad."""

from __future__ import annotations

import asyncio
import logging

import grpc
from triptych.v1 import common_pb2, encoder_pb2, generation_pb2
from triptych_common.cluster.connection import Connection
from triptych_common.cluster.encoder import EncoderConnection
from triptych_common.cluster.pool import Pool
from triptych_common.rpc.channels import was_closed

from triptych_frontend.encoders.pool import EncoderPool
from triptych_frontend.engines.connection import EngineConnection

log = logging.getLogger(__name__)
#: Longest wait for the counts of an encoder, in seconds.
STATS_TIMEOUT_S = 1.0


async def load_of(engines: Pool[EngineConnection], encoders: EncoderPool) -> generation_pb2.GetLoadResponse:
    """The load of all services of both pools. The encoders are asked at the same time; one that does not answer has no counts."""
    # One tuple: the pool may change while the encoders are asked.
    connections = encoders.connections
    stats = await asyncio.gather(*(_stats_of(encoder) for encoder in connections))
    response = generation_pb2.GetLoadResponse()
    for engine in engines.connections:
        load = engine.reported_load if engine.is_connected else None
        response.engines.add(instance=_instance_of(engine), load=load)
    for encoder, counts in zip(connections, stats, strict=True):
        response.encoders.add(instance=_instance_of(encoder), stats=counts)
    return response


def _instance_of(connection: Connection) -> common_pb2.Instance:
    """The identity of a service, in its current state."""
    instance = common_pb2.Instance(state=common_pb2.SERVER_STATE_UNAVAILABLE)
    if connection.instance is not None:
        instance.CopyFrom(connection.instance)
        instance.state = connection.endpoint.state
    return instance


async def _stats_of(encoder: EncoderConnection) -> encoder_pb2.GetStatsResponse | None:
    if not encoder.is_connected:
        return None
    try:
        with encoder.in_use():
            return await encoder.stub.GetStats(encoder_pb2.GetStatsRequest(), timeout=STATS_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        log.debug("the encoder at %s did not tell its load: %s", encoder.address, error.code().name)
    except (grpc.aio.UsageError, asyncio.CancelledError) as error:
        if not was_closed(error):
            raise
    return None

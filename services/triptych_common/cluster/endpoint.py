"""The state of one service that this process uses."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The current state of one service, as its pool knows it."""

    #: host:port to connect to.
    address: str
    #: Instance id, different after each start; empty until the service reports it.
    id: str = ""
    #: host:port that the service advertises to others; empty if it advertises none.
    public_url: str = ""
    #: Name of the model that the service serves; empty until the service reports it.
    model: str = ""
    state: common_pb2.ServerState = common_pb2.SERVER_STATE_UNSPECIFIED
    #: Number of requests that run or wait in the service, as far as the pool knows.
    load: int = 0
    #: Why the service takes no work; empty while it does.
    why_away: str = ""

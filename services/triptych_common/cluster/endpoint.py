"""What is known of one service that others use."""

from __future__ import annotations

from dataclasses import dataclass

from triptych_common.pb import common_pb2


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One service, as its pool knows it now."""

    #: host:port that is dialled.
    address: str
    #: Instance id, different after each start; empty until the service told it.
    id: str = ""
    #: host:port that the service says others should use; empty when it does not say.
    public_url: str = ""
    #: Name of the model that it serves; empty until it told.
    model: str = ""
    state: common_pb2.ServerState = common_pb2.SERVER_STATE_UNSPECIFIED
    #: Requests that it works on or that wait there, as far as the pool knows.
    load: int = 0
    #: Why it takes no work; empty while it does.
    why_away: str = ""

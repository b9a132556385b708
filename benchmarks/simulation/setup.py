"""What a simulation is made of: engines, frontends, and what the paths between them cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from triptych_engine.executor.simulated import SimulatedCosts
from triptych_frontend.engines.policy import Routing


@dataclass(frozen=True)
class Overheads:
    """What requests and tokens cost outside of engine steps, in seconds. Fitted to a real run by `fit`.

    Attributes:
        request_s: from the client's first byte to the frontend's choice of an engine: gateway, checks, tokenizer.
        message_s: from a frontend to an engine, and from an engine to a frontend.
        answer_s: from the frontend to the client, for each token.
        host_step_s: host time between two steps, in which the device waits.
        host_sequence_s: the same for each sequence of the step.
        frontend_request_s: processor time of a frontend per request, without the choice of an engine.
        frontend_token_s: processor time of a frontend per output token.
        choice_s: processor time of a frontend to compare one engine, by policy.
        slowdown: by which factor a step takes longer than its costs, which were measured alone, where others use the same memory
            and caches.
        shared_step_s: for how long others compute on the engine's core during a step. The pacer sees both.
    """

    request_s: float = 0.0
    message_s: float = 0.0
    answer_s: float = 0.0
    host_step_s: float = 0.0
    host_sequence_s: float = 0.0
    frontend_request_s: float = 0.0
    frontend_token_s: float = 0.0
    choice_s: dict[str, float] = field(default_factory=dict)
    slowdown: float = 1.0
    shared_step_s: float = 0.0


@dataclass(frozen=True)
class Grid:
    """The largest step that the costs were measured on. Steps beyond it are counted: their costs are extrapolated."""

    max_decoding: int = 64
    max_prompt_tokens: int = 512


@dataclass(frozen=True)
class Setup:
    """A fleet.

    Attributes:
        costs: of a step of an engine.
        num_blocks: of each engine's KV cache.
        losses: (time in seconds, number of the engine) of engines that are lost.
        restart_s: time until a lost engine is back, with an empty cache; None: it does not come back.
        jitter_seed: draws the noise of steps, and the order in which requests of the same moment arrive: each takes 0.5 to 1.5
            times `request_s`. None: all take the same time, and the noise is always the same.
        checks_every: steps of an engine between two checks of all its invariants; 0: only at the end.
    """

    costs: SimulatedCosts
    num_blocks: int
    num_engines: int
    num_frontends: int = 1
    routing: Routing = "prefix"
    overheads: Overheads = Overheads()
    grid: Grid = Grid()
    losses: tuple[tuple[float, int], ...] = ()
    restart_s: float | None = None
    jitter_seed: int | None = None
    checks_every: int = 0

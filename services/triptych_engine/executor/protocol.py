"""The interface between the step loop and the executors that compute steps."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from triptych_common.constraints.spec import ConstraintSpec

from triptych_engine.media.item import MediaTraits
from triptych_engine.scheduling.output import SchedulerOutput, StepResult
from triptych_engine.scheduling.step_costs import StepCosts


class WorkerLostError(Exception):
    """The worker process has ended, or was ended because it hung. All sequences that it had, and its KV cache, are lost.
    `Executor.restore` starts another one."""


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What the rest of the engine needs to know about an executor and the model that it has loaded."""

    vocab_size: int
    num_blocks: int
    block_size: int
    #: Traits of a model that takes media; for other models the reason why media are refused.
    media_traits: MediaTraits | str
    #: Most tokens of a step.
    max_num_batched_tokens: int
    #: Bytes of one embedding of a media item, including its deepstack additions to early layers.
    embedding_bytes: int
    #: Measured costs of steps, to limit steps by time; None where step times are not a useful measure, as on a GPU.
    costs: StepCosts | None
    #: Whether `launch` returns before the step is computed, because a device or another process computes it.
    is_asynchronous: bool = False
    #: Whether steps may have draft tokens, which it verifies.
    takes_drafts: bool = False
    #: Whether sequences may have adapters.
    takes_loras: bool = False
    #: Slots for the recurrent states of a hybrid model; 0 for others.
    num_states: int = 0
    #: Slots for keys and values of an encoder's states; 0 for models without cross-attention.
    num_cross_slots: int = 0
    #: Blocks of layers with a window, if these have blocks of their own, and that window in tokens.
    num_window_blocks: int = 0
    window: int = 0
    #: Size of a block of the KV cache, of each rank; empty if blocks cannot be copied.
    block_bytes: tuple[int, ...] = ()
    #: What the bytes of a block mean.
    kv_layout: str = ""
    #: Whether prompts may be divided among steps. Not if each token attends to all others, or if there is no KV cache.
    can_chunk: bool = True


class Executor(Protocol):
    """Computes steps, one after the other, in the order in which they are launched.

    A step takes three calls. They are separate so that the host can work while the device computes: for example, it can schedule
    the next step, or compute a grammar's token mask. All arguments and results are plain data, so that an executor can have its
    workers in other processes. Each call may raise a WorkerLostError then. All calls come from one thread, the one that called
    `load`, except `compile_constraint`, `load_lora` and `close`.
    """

    def load(self) -> ExecutorInfo:
        """Load the model and make everything ready for the first step.

        Raises:
            StartupError: the model cannot be loaded, or does not fit in memory.
            UnsupportedModelError: the model cannot be run correctly.
        """
        ...

    def launch(self, scheduled: SchedulerOutput) -> None:
        """Start the forward pass of a step; may return before it ends. Raises an error if the whole step fails."""
        ...

    def sample(self, step_id: int) -> None:
        """Start sampling for the step that was launched last; may return before it ends. Raises like `launch`."""
        ...

    def result(self, step_id: int) -> StepResult:
        """Wait for the end of a step; returns its result. Called once per step, in launch order, unless an earlier call raised."""
        ...

    def compile_constraint(self, spec: ConstraintSpec) -> Future[Any]:
        """Prepare a constraint before a sequence with it is launched. Called on any thread, and returns at once.

        The caller keeps the result of the future while it has sequences with this constraint. Otherwise the executor may have to
        compile it again, in a step. The error of the future is an InvalidRequestError or an UnimplementedError.
        """
        ...

    def load_lora(self, name: str) -> Future[Any]:
        """Load an adapter before a sequence with it is launched. Called on any thread, and returns at once.

        The result of the future has the adapter's `digest`, by which sequences name it. The caller keeps it while it has sequences
        with this adapter. The error is a ModelNotFoundError if there is no such adapter, an InvalidRequestError if it does not fit
        the model, a ServiceUnavailableError if too many are in use.
        """
        ...

    def check_health(self) -> None:
        """Raise if the device can no longer compute any step. Called after a failed step."""
        ...

    def free_cache(self) -> None:
        """Free the memory of the KV cache. No step may be in flight, and the executor may hold no sequence."""
        ...

    def unload(self) -> None:
        """Free the model as well, after `free_cache`. May be called twice."""
        ...

    def restore(self) -> None:
        """Make what was freed, or lost with a process, usable again, with as many blocks of KV cache as before. Raises like
        `load`."""
        ...

    def close(self) -> None:
        """End the processes that it has started. Called once, at the end, on any thread."""
        ...

"""What the step loop needs of those who compute steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from triptych_engine.media.item import MediaTraits
from triptych_engine.scheduling.output import SchedulerOutput, StepResult
from triptych_engine.scheduling.pacer import StepCosts


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What the rest of the engine needs to know about an executor and the model that it has loaded."""

    vocab_size: int
    num_blocks: int
    block_size: int
    #: Of a model that takes media; else why it does not.
    media_traits: MediaTraits | str
    #: Memory of one embedding of a media item, with its additions to early layers.
    embedding_bytes: int
    #: What steps cost, where they can be paced by time; None where their time says little, as on a GPU.
    costs: StepCosts | None


class Executor(Protocol):
    """Computes steps, one after the other, in the order in which they are launched.

    A step takes three calls. They are apart so that the host can work while the device computes: it schedules the next step, or
    finds out which tokens a grammar allows. All arguments and results are plain data, so that an executor can have its workers in
    other processes. All calls come from one thread, the one that called `load`.
    """

    def load(self) -> ExecutorInfo:
        """Load the model and make everything ready for the first step.

        Raises:
            StartupError: the model cannot be had, or does not fit.
            UnsupportedModelError: the model cannot be run correctly.
        """
        ...

    def launch(self, scheduled: SchedulerOutput) -> None:
        """Begin the forward pass of a step; need not wait for it. Raises what went wrong with the step as a whole."""
        ...

    def sample(self, step_id: int) -> None:
        """Begin to sample the tokens of the step that was launched last; need not wait for them. Raises as `launch`."""
        ...

    def result(self, step_id: int) -> StepResult:
        """Wait for the end of a step. To be called once for each step for which the calls before did not raise, in their order."""
        ...

    def check_health(self) -> None:
        """Raise when nothing can be computed any more, whatever the step. Called after a step that failed."""
        ...

    def allocate_cache(self) -> None:
        """Take the memory of the KV cache again."""
        ...

    def free_cache(self) -> None:
        """Give the memory of the KV cache back. No step may be in flight, and no sequence known."""
        ...

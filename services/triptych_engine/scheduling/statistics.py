"""What the engine counts for its metrics. Each class has one writer; any thread may read."""

from __future__ import annotations

from collections import Counter

from triptych.errors import InternalError, TriptychError
from triptych_common.telemetry.histogram import GAP_SECONDS, SECONDS, SIZES, TOKENS, Histogram

from triptych_engine.scheduling.output import SchedulerOutput, SequenceOutput
from triptych_engine.scheduling.request import Request


class StepStatistics:
    """What happens in steps. The step loop's thread writes it."""

    def __init__(self) -> None:
        #: From a sequence's arrival to its first admission, and to its first token.
        self.queue = Histogram(SECONDS)
        self.first_token = Histogram(SECONDS)
        #: Between two steps that brought tokens of the same sequence.
        self.gaps = Histogram(GAP_SECONDS)
        #: Duration, sequences and tokens of each step.
        self.step = Histogram(GAP_SECONDS)
        self.batch_size = Histogram(SIZES)
        self.step_tokens = Histogram(TOKENS)
        #: Draft tokens that steps verified, and those of them that were right.
        self.num_draft_tokens = self.num_accepted_tokens = 0

    def admitted(self, request: Request) -> None:
        """Count the wait of a request that has just got its blocks, unless it had been running before."""
        if request.first_scheduled_time is not None and not request.num_preemptions:
            self.queue.observe(request.first_scheduled_time - request.arrival_time)

    def completed(self, scheduled: SchedulerOutput, step_s: float) -> None:
        """Count a step."""
        if scheduled.num_scheduled_tokens:
            self.step.observe(step_s)
            self.batch_size.observe(len(scheduled.num_scheduled_tokens))
            self.step_tokens.observe(sum(scheduled.num_scheduled_tokens.values()) + scheduled.num_draft_tokens)

    def drafted(self, num_draft_tokens: int, num_accepted: int) -> None:
        """Count the draft tokens of a sequence in one step."""
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted


class RequestStatistics:
    """How sequences ended. The event loop writes it."""

    def __init__(self) -> None:
        #: From arrival to the end; from the first admission to the first token, and from there to the end.
        self.request = Histogram(SECONDS)
        self.prefill = Histogram(SECONDS)
        self.decode = Histogram(SECONDS)
        #: Ended sequences by finish reason; errors by reason; media items by where their embeddings came from.
        self.num_ended: Counter[str] = Counter()
        self.num_errors: Counter[str] = Counter()
        self.num_media: Counter[str] = Counter()

    def ended(self, output: SequenceOutput) -> None:
        """Count a sequence by its last output."""
        if output.finish_reason is None:
            raise ValueError("only a last output says how its sequence ended")
        self.num_ended[output.finish_reason.value] += 1
        if output.error is not None:
            self.refused(output.error)
        timings = output.timings
        if timings is not None:
            self.request.observe(timings.queue_s + timings.prefill_s + timings.decode_s)
            if output.usage is not None and output.usage[1]:
                self.prefill.observe(timings.prefill_s)
                self.decode.observe(timings.decode_s)
        for fetch in output.media.fetches if output.media is not None else ():
            if fetch.source is not None:
                self.num_media[fetch.source.value] += 1

    def refused(self, error: Exception) -> None:
        """Count an error."""
        self.num_errors[error.reason if isinstance(error, TriptychError) else InternalError.reason] += 1

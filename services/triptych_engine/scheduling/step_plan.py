"""A step that is being planned: its work so far, and the token budget (room) that is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triptych_engine.media.gate import MediaGate
from triptych_engine.scheduling.in_flight import ScheduledRequest
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput
from triptych_engine.scheduling.request import Request, RequestStatus


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that is reserved for a request's span, which did not fit in the previous step."""

    request: Request
    num_tokens: int


class StepPlan:
    """Collects the work of one step.

    Args:
        gate: knows which tokens have their embeddings.
        max_tokens: token budget of the step.
        max_prompt_tokens: maximum number of tokens, within that budget, of requests that compute more than their newest token.
        can_chunk: a request's tokens may be divided among steps.
        reservation: room that other requests may not use until it is settled. Its own request may exceed max_prompt_tokens with it.
    """

    def __init__(
        self, gate: MediaGate, max_tokens: int, max_prompt_tokens: int, reservation: Reservation | None, *, can_chunk: bool = True
    ) -> None:
        self.output = SchedulerOutput()
        self.scheduled: dict[Request, ScheduledRequest] = {}
        self.failed: list[tuple[Request, Exception]] = []  # requests that could not be planned, and why
        self.reservation = reservation if reservation and reservation.request.status is not RequestStatus.FINISHED else None
        self.next_reservation: Reservation | None = None
        self.room = max_tokens
        self._gate = gate
        self._can_chunk = can_chunk
        self._prompt_room = max_prompt_tokens

    # -- queries --------------------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return self.room <= 0

    @property
    def free_room(self) -> int:
        """Tokens that may be added without using what is reserved."""
        return self.room if self.reservation is None else self.room - self.reservation.num_tokens

    def chunk(self, request: Request, start: int) -> int:
        """How many tokens of the request from `start` on to compute now; 0 when it waits for embeddings or for room."""
        num_left = request.num_tokens - start
        room = self._room_for(request, num_left)
        if not self._can_chunk and room < num_left:
            return 0
        if start >= request.media.end:
            return room
        available = self._gate.num_computable(request, start)
        return request.media.whole_spans(start, min(available, room))

    def missing_room(self, request: Request, start: int) -> int:
        """Tokens of the span that the request could compute now if the step had room for all of it; 0 if it does not wait for
        room."""
        if start >= request.media.end or not self._gate.num_computable(request, start) or self.chunk(request, start):
            return 0
        return request.media.span_rest(start)

    def _room_for(self, request: Request, num_wanted: int) -> int:
        room, prompt_room = self.room, self._prompt_room
        if self.reservation is not None:
            if self.reservation.request is request:
                prompt_room = max(prompt_room, self.reservation.num_tokens)
            else:
                room -= self.reservation.num_tokens
        return max(0, min(num_wanted, room if num_wanted == 1 else min(room, prompt_room)))

    # -- changes --------------------------------------------------------------------------------------------------------------

    def put(self, request: Request, num_tokens: int, draft_token_ids: Sequence[int] = ()) -> None:
        """Add the request's next tokens to the step. The request must have blocks for them.

        Args:
            draft_token_ids: guesses of what follows, to verify. The request's last known token must be among those added.
        """
        output, request_id, start = self.output, request.request_id, request.num_scheduled_tokens
        num_left = request.num_tokens - start
        max_new_tokens = 0 if num_tokens < num_left else 1
        if start < request.media.end and (slices := self._gate.slices(request, start, num_tokens)):
            output.embeddings[request_id] = slices
        if num_left == 1:
            output.num_decoding += 1
        else:
            self._prompt_room -= num_tokens
            output.num_prompt_tokens += num_tokens
        self.room -= num_tokens
        output.num_scheduled_tokens[request_id] = num_tokens
        if max_new_tokens:
            if draft_token_ids:
                max_new_tokens += len(draft_token_ids)
                self.room -= len(draft_token_ids)
                output.draft_token_ids[request_id] = list(draft_token_ids)
            output.max_new_tokens[request_id] = max_new_tokens
        self.scheduled[request] = ScheduledRequest(request, num_tokens, max_new_tokens)

    def put_new(self, request: Request, num_tokens: int) -> None:
        """Like `put`, for a request that was just admitted."""
        sequence = NewSequence.of(request)
        if request.fills_cross_slot:
            sequence.encoder_states = self._gate.encoder_states(request)
        self.output.new.append(sequence)
        self.put(request, num_tokens)

    def remove(self, request: Request) -> None:
        """Remove everything of a request from the step."""
        output, request_id = self.output, request.request_id
        output.new = [sequence for sequence in output.new if sequence.request_id != request_id]
        tokens = output.num_scheduled_tokens, output.max_new_tokens, output.draft_token_ids
        blocks = output.new_block_ids, output.new_window_block_ids
        for mapping in (*tokens, *blocks, output.embeddings, output.snapshots):
            mapping.pop(request_id, None)
        self.scheduled.pop(request, None)

    def reserve(self, request: Request, num_tokens: int) -> None:
        """Reserve room for a span in the next step. Only the first call has an effect."""
        if self.next_reservation is None:
            self.next_reservation = Reservation(request, num_tokens)

    def settle_reservation(self) -> None:
        """End the reservation: its request has used the room or cannot use it. Other requests may use the rest."""
        self.reservation = None

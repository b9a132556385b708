"""One step in the making: its work so far, and what room is left in it."""

from __future__ import annotations

from dataclasses import dataclass

from triptych_engine.media.gate import MediaGate
from triptych_engine.scheduling.output import Part, SchedulerOutput
from triptych_engine.scheduling.request import Request, RequestStatus


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that is kept for a span of a request, which the step before had no room for."""

    request: Request
    num_tokens: int


class StepPlan:
    """Collects the work of one step.

    Args:
        media: knows which tokens have their embeddings.
        max_tokens: of the step.
        max_prompt_tokens: of those, tokens of requests that compute more than their newest one.
        reservation: room that others may not use until it is settled; for its request it comes before max_prompt_tokens.
    """

    def __init__(self, media: MediaGate, max_tokens: int, max_prompt_tokens: int, reservation: Reservation | None) -> None:
        self.output = SchedulerOutput()
        self.reservation = reservation if reservation and reservation.request.status is not RequestStatus.FINISHED else None
        self.next_reservation: Reservation | None = None
        self._media = media
        self._room = max_tokens
        self._prompt_room = max_prompt_tokens

    @property
    def is_full(self) -> bool:
        return self._room <= 0

    def chunk(self, request: Request, start: int) -> int:
        """How many tokens of the request from `start` on to compute now; 0 when it waits for embeddings, for room, or for a step
        with room for a whole span."""
        room = self._room_for(request, request.num_tokens - start)
        if start >= request.media.end:
            return room
        available = self._media.num_computable(request, start)
        num_tokens = request.media.whole_spans(start, min(available, room))
        if available and not num_tokens and self.next_reservation is None and (rest := request.media.span_rest(start)):
            self.next_reservation = Reservation(request, rest)
        return num_tokens

    def settle_reservation(self) -> None:
        """The request that room was kept for has taken it, or cannot: what is left is for all."""
        self.reservation = None

    def _room_for(self, request: Request, num_wanted: int) -> int:
        room, prompt_room = self._room, self._prompt_room
        if self.reservation is not None:
            if self.reservation.request is request:
                prompt_room = max(prompt_room, self.reservation.num_tokens)
            else:
                room -= self.reservation.num_tokens
        return max(0, min(num_wanted, room if num_wanted == 1 else min(room, prompt_room)))

    def put(self, request: Request, num_tokens: int) -> None:
        """Make the request's next tokens, which have their blocks, part of the step."""
        start, output = request.num_scheduled_tokens, self.output
        output.num_scheduled_tokens[request.request_id] = num_tokens
        if start < request.media.end and (slices := self._media.slices(request, start, num_tokens)):
            output.embeddings[request.request_id] = slices
        self._room -= num_tokens
        if request.decodes:
            output.num_decoding += 1
        else:
            self._prompt_room -= num_tokens
            output.num_prompt_tokens += num_tokens
        output.parts.append(Part(request, num_tokens, samples=start + num_tokens == request.num_tokens))

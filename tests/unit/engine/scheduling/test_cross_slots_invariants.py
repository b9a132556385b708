"""Requests that attend to an encoder's states, whatever happens in whatever order: each sees those of its own item, and ends."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from support.builders.engine import FixedDrafter, a_request, layer_groups
from support.fakes.runner import FakeRunner, fake_embeddings
from triptych.errors import NeverFitsError, QueueFullError
from triptych_engine.media.item import MediaItem, Modality, PromptMedia
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.output import SchedulerOutput
from triptych_engine.scheduling.scheduler import Scheduler

from tests.unit.engine.scheduling.test_scheduler_invariants import PROMPTS, SchedulerMachine

NUM_STATES = 3


class RunnerWithSlots(FakeRunner):
    """Knows what each slot holds, and what each request must see."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, bytes] = {}  # request_id -> key of its item
        self._held: dict[int, bytes] = {}  # slot -> embeddings
        self._slots: dict[str, int] = {}  # request_id -> slot

    def launch(self, scheduled: SchedulerOutput) -> None:
        for new in scheduled.new:
            assert new.cross_slot is not None
            self._slots[new.request_id] = new.cross_slot
            if new.encoder_states is not None:
                self._held[new.cross_slot] = bytes(new.encoder_states.tensors["embeds"].data)
        for request_id in scheduled.num_scheduled_tokens:
            wanted = fake_embeddings(self.keys[request_id], NUM_STATES).tensors["embeds"].data
            assert self._held.get(self._slots[request_id]) == bytes(wanted)
        super().launch(scheduled)

    def lose(self) -> None:
        self._held.clear()
        super().lose()


class CrossSlotsMachine(SchedulerMachine):
    """The same with one item beside each prompt."""

    @initialize(
        num_slots=st.integers(1, 4),
        budget=st.integers(2, 24),
        caching=st.booleans(),
        max_embeddings=st.integers(NUM_STATES, 3 * NUM_STATES),
        max_in_flight=st.sampled_from([0, 1, 1, 2]),
        num_drafts=st.sampled_from([0, 0, 1, 4]),
    )
    def start(self, num_slots: int, budget: int, caching: bool, max_embeddings: int, max_in_flight: int, num_drafts: int) -> None:  # type: ignore[override]
        self.max_in_flight, self.num_blocks, self.tier = max_in_flight, 12, None
        self.in_flight = deque()
        self.scheduler = Scheduler(
            KVCacheManager(self.num_blocks, 4, caching, groups=layer_groups(None, 0, 4, num_slots)),
            max_num_seqs=num_slots,
            max_num_batched_tokens=budget,
            max_waiting=8,
            max_model_len=64,
            max_embeddings=max_embeddings,
            drafter=FixedDrafter(num_drafts) if num_drafts else None,
        )
        self.runner = RunnerWithSlots()
        self.orders, self.old_orders = {}, []
        self.requests, self.tokens, self.ended = {}, {}, {}

    @rule(
        prompt=PROMPTS,
        key=st.sampled_from([b"a", b"b", b"c"]),
        max_tokens=st.integers(0, 20),
        priority=st.integers(-1, 1),
        fails=st.integers(0, 19).map(lambda n: n == 0),
    )
    def add(self, prompt: list[int], key: bytes, max_tokens: int, priority: int, fails: bool) -> None:  # type: ignore[override]
        request = a_request(f"r{len(self.requests)}", prompt, max_tokens=max_tokens)
        request.media = PromptMedia((MediaItem(0, Modality.AUDIO, key, num_tokens=NUM_STATES),), is_beside=True)
        request.priority = priority
        try:
            self.scheduler.add(request)
        except (NeverFitsError, QueueFullError):
            return
        self.requests[request.request_id], self.tokens[request.request_id] = request, []
        self.runner.keys[request.request_id] = key  # type: ignore[attr-defined]
        self.runner.salts[request.request_id] = key.decode()  # blocks of other items are others
        if fails:
            self.runner.fail_requests.add(request.request_id)


CrossSlotsMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
TestCrossSlotsMachine: Any = CrossSlotsMachine.TestCase

"""What goes to the executor is pure data."""

from __future__ import annotations

import io
import pickle
from dataclasses import fields

from support.builders.engine import a_host_tier, a_media_request, a_request, a_scheduler
from support.fakes.runner import FakeRunner, fake_embeddings
from triptych_engine.scheduling.output import SchedulerOutput
from triptych_engine.scheduling.request import Request
from triptych_engine.scheduling.scheduler import Scheduler


class _WithoutRequests(pickle.Pickler):
    """Refuses a live request, wherever in an object it is."""

    def persistent_id(self, obj: object) -> None:
        assert not isinstance(obj, Request), f"request {obj.request_id} is reachable"


def pickled(output: SchedulerOutput) -> bytes:
    buffer = io.BytesIO()
    _WithoutRequests(buffer).dump(output)
    return buffer.getvalue()


def test_a_scheduler_output_is_the_same_after_a_journey_and_holds_no_request():
    tier = a_host_tier(64)
    scheduler = a_scheduler(num_blocks=12, num_drafts=2, max_num_batched_tokens=64, tier=tier, offers_prompts=True)
    runner = FakeRunner(tier=tier)
    scheduler.add(a_request("text", list(range(10)), max_tokens=12))
    scheduler.add(a_request("other", list(range(20, 29)), max_tokens=12, logit_bias={3: 1.0}))
    scheduler.add(a_media_request("picture", [1, (b"cat", (6,)), 2], max_tokens=12))
    for order in scheduler.take_fetches()[0]:
        scheduler.arrive(order.number, fake_embeddings(order.key, order.num_tokens))
    later = [a_request("again", list(range(10)), max_tokens=2), a_request("long", [9] * 40, max_tokens=2)]
    seen = _fields_used(scheduler, runner, later)
    assert scheduler.num_preemptions > 0
    hybrid, runner = a_scheduler(num_states=4, num_window_blocks=32), FakeRunner()
    runner.windows.window = 8
    hybrid.add(a_request("text", list(range(10))))
    seen |= _fields_used(hybrid, runner, [])
    assert seen == {field.name for field in fields(SchedulerOutput)} - {"awaits_embeddings"}, "each field was put to the test"


def _fields_used(scheduler: Scheduler, runner: FakeRunner, later: list[Request]) -> set[str]:
    """The names of the fields that are not empty in some step, of which each has made its journey."""
    seen = set()
    while scheduler.has_work:
        output = scheduler.schedule()
        data = pickled(output)
        again = pickle.loads(data)  # noqa: S301 - our own bytes
        assert pickled(again) == data
        seen |= {field.name for field in fields(output) if getattr(output, field.name)}
        scheduler.update_from_output(output, runner.execute(again))
        if not scheduler.has_work and later:
            scheduler.add(later.pop())
    return seen

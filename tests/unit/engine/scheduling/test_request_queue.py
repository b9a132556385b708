"""The waiting queue: two orders of the same requests, and nothing kept of those that left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.builders.engine import a_request
from triptych_engine.scheduling.queue import RequestQueue
from triptych_engine.scheduling.request import Request


def waiting(name: str, length: int, arrival: int, priority: int = 0) -> Request:
    request = a_request(name, [1] * length)
    request.arrival, request.priority = arrival, priority
    return request


@given(st.lists(st.tuples(st.sampled_from(["push", "first", "shortest"]), st.integers(1, 9), st.integers(-1, 1)), max_size=60))
def test_first_and_shortest_are_those_of_a_plain_list(operations: list[tuple[str, int, int]]):
    queue, model = RequestQueue(), []
    for number, (operation, length, priority) in enumerate(operations):
        if operation == "push":
            model.append(waiting(str(number), length, number, priority))
            queue.push(model[-1])
        elif model:
            key = (lambda r: r.queue_key) if operation == "first" else (lambda r: r.shortness_key)
            expected = min(model, key=key)
            assert (queue.first() if operation == "first" else queue.shortest()) is expected
            queue.remove(expected.request_id)
            model.remove(expected)
        assert len(queue) == len(model)


def test_a_request_that_comes_again_longer_stands_where_it_belongs_now():
    queue = RequestQueue()
    grown, other = waiting("grown", 2, 0), waiting("other", 5, 1)
    queue.push(grown)
    queue.push(other)
    queue.remove("grown")
    grown.token_ids += [1] * 10
    queue.push(grown)
    assert queue.shortest() is other


def test_long_requests_that_left_are_not_held_by_short_ones_that_wait():
    queue = RequestQueue()
    queue.push(waiting("short", 1, 10_000))
    for number in range(1000):
        long = waiting(f"long {number}", 50, number)
        queue.push(long)
        assert queue.first() is long
        queue.remove(long.request_id)
    assert len(queue._tenants[""]._by_length) < 100
    assert queue.shortest() is queue.first()

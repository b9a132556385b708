"""What requests with media get, wait for and let go, with a fake runner and fetches by hand."""

from __future__ import annotations

import pytest
from support.builders.engine import PLACEHOLDER, a_media_request, a_request, a_scheduler
from support.fakes.runner import FakeRunner, expected_output, fake_embeddings, seen
from triptych.errors import EmbeddingUnavailableError, NeverFitsError
from triptych_engine.media.item import Bidirectional, EmbeddingSource, FetchOrder
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason, Request
from triptych_engine.scheduling.scheduler import Scheduler

CAT, DOG = (b"cat", (6,)), (b"dog", (6,))


class Driver:
    """Steps a scheduler and notes what comes out."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.runner = scheduler, FakeRunner()
        self.outputs: dict[str, list[SequenceOutput]] = {}
        self.last_step: dict[str, int] = {}

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)

    def step(self) -> dict[str, int]:
        """One step; returns how many tokens of which requests were computed."""
        scheduled = self.scheduler.schedule()
        self.note(self.scheduler.update_from_output(scheduled, self.runner.execute(scheduled)))
        self.scheduler.check_integrity()
        return scheduled.num_scheduled_tokens

    def fetches(self) -> list[FetchOrder]:
        return self.scheduler.take_fetches()[0]

    def deliver(self, *orders: FetchOrder) -> None:
        for order in orders:
            self.note(self.scheduler.arrive(order.number, fake_embeddings(order.key, order.num_tokens)))

    def note(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).append(output)

    def run_to_end(self) -> None:
        for _ in range(1000):
            self.deliver(*self.fetches())
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.live_request_ids

    def text(self, request_id: str) -> list[int]:
        return [token_id for output in self.outputs[request_id] for token_id in output.token_ids]

    def sources(self, request_id: str) -> list[EmbeddingSource | None]:
        media = self.outputs[request_id][-1].media
        assert media is not None
        return [fetch.source for fetch in media.fetches]


def test_text_overtakes_a_request_that_waits_for_its_embeddings():
    driver = Driver(a_scheduler(max_num_batched_tokens=64))
    driver.add(a_media_request("picture", [1, CAT, 2]), a_request("text"))
    (order,) = driver.fetches()
    assert (order.key, order.num_tokens, order.encoder_id) == (b"cat".ljust(32, b"."), 6, "encoder:1")
    assert driver.step() == {"text": 3}
    assert driver.step() == {"text": 1}
    driver.deliver(order)
    assert driver.step() == {"text": 1, "picture": 8}
    driver.run_to_end()
    request = a_media_request("picture", [1, CAT, 2])
    assert driver.text("picture") == expected_output(seen(request.prompt_token_ids, request.media), request.sampling)


def test_nothing_is_to_do_while_all_wait_for_embeddings():
    driver = Driver(a_scheduler())
    driver.add(a_media_request("picture", [*range(8), CAT]))
    (order,) = driver.fetches()
    assert driver.step() == {"picture": 8}
    driver.step()
    assert not driver.scheduler.has_work
    driver.deliver(order)
    assert driver.scheduler.has_work
    driver.run_to_end()


def test_those_who_wait_leave_half_of_the_blocks_to_others():
    driver = Driver(a_scheduler(num_blocks=16))
    driver.add(*(a_media_request(f"picture{i}", [*range(8), (bytes([i]), (6,))]) for i in range(8)))
    driver.step()
    assert driver.scheduler.num_running == 2  # of four blocks each
    driver.add(a_request("text", list(range(20, 40))))
    assert driver.step() == {"text": 20}
    driver.run_to_end()


def test_another_question_on_the_same_picture_fetches_and_computes_nothing_of_it():
    driver = Driver(a_scheduler())
    driver.add(a_media_request("first", [1, 2, CAT, 5, 6, 7]))
    driver.run_to_end()
    driver.add(a_media_request("second", [1, 2, CAT, 8, 9]), a_media_request("other", [1, 2, DOG, 8, 9]))
    assert [order.key[:3] for order in driver.fetches()] == [b"dog"]
    assert driver.step() == {"second": 2}
    driver.scheduler.abort(["other"])
    driver.run_to_end()
    media = driver.outputs["second"][-1].media
    assert media is not None
    assert (media.num_cached_tokens, media.fetches[0].source) == (6, EmbeddingSource.PREFIX_CACHE)


def test_one_fetch_serves_all_who_want_the_item():
    driver = Driver(a_scheduler())
    driver.add(a_media_request("a", [1, CAT, 2]), a_media_request("b", [3, CAT, 4, CAT]))
    assert len(driver.fetches()) == 1
    driver.scheduler.abort(["a"])
    assert driver.scheduler.take_fetches() == ([], [])
    driver.scheduler.abort(["b"])
    assert driver.scheduler.take_fetches() == ([], [1])


def test_embeddings_stay_for_others_until_their_room_is_needed():
    driver = Driver(a_scheduler(enable_prefix_caching=False, max_embeddings=12))
    for number, item in enumerate((CAT, CAT, DOG, (b"owl", (4,)), DOG, CAT)):
        driver.add(a_media_request(f"r{number}", [1, item, 2]))
        driver.run_to_end()
    sources = [driver.sources(f"r{number}")[0] for number in range(6)]
    encoder, engine = EmbeddingSource.ENCODER, EmbeddingSource.ENGINE
    assert sources == [encoder, engine, encoder, encoder, engine, encoder]


def test_a_failed_fetch_ends_those_who_need_it_and_nobody_else():
    driver = Driver(a_scheduler())
    driver.add(a_media_request("lost", [1, DOG, CAT]), a_media_request("kept", [1, DOG]))
    dog, cat = driver.fetches()
    driver.note(driver.scheduler.arrive(cat.number, EmbeddingUnavailableError("it is gone")))
    error = driver.outputs["lost"][-1].error
    assert isinstance(error, EmbeddingUnavailableError)
    assert (error.field, error.message) == ("media[1]", "media[1]: it is gone")
    driver.deliver(dog)
    driver.run_to_end()
    assert driver.outputs["kept"][-1].finish_reason is FinishReason.LENGTH


def test_an_item_that_one_encoder_lost_is_fetched_from_the_one_that_another_request_names():
    driver = Driver(a_scheduler())
    driver.add(a_media_request("lost", [1, CAT]), a_media_request("kept", [1, CAT], address="encoder:2"))
    (order,) = driver.fetches()
    driver.note(driver.scheduler.arrive(order.number, EmbeddingUnavailableError("it is gone")))
    assert driver.outputs["lost"][-1].finish_reason is FinishReason.ERROR
    assert [order.encoder_id for order in driver.fetches()] == ["encoder:2"]


@pytest.mark.parametrize("bidirectional", [Bidirectional.IMAGES, Bidirectional.PROMPT])
def test_a_span_that_no_step_can_hold_is_refused_with_the_numbers(bidirectional: Bidirectional):
    driver = Driver(a_scheduler(max_num_batched_tokens=5))
    with pytest.raises(NeverFitsError, match=r"6 tokens that all see each other.* a step takes 5 \(max_num_batched_tokens\)"):
        driver.add(a_media_request("r", [CAT], bidirectional))


def test_an_item_larger_than_the_room_for_embeddings_is_refused_with_the_numbers():
    driver = Driver(a_scheduler(max_embeddings=5))
    with pytest.raises(NeverFitsError, match=r"media\[0\] needs room for 6 embeddings at once; the engine has it for 5"):
        driver.add(a_media_request("r", [1, CAT]))


def test_a_span_gets_a_step_of_its_own_when_others_leave_no_room_for_it():
    driver = Driver(a_scheduler(max_num_batched_tokens=8))
    driver.add(*(a_request(f"text{i}", [i, i + 1], max_tokens=30) for i in range(4)))
    driver.step()
    driver.add(a_media_request("picture", [1, CAT, 2], Bidirectional.IMAGES))
    driver.deliver(*driver.fetches())
    assert driver.step() == {"text0": 1, "text1": 1, "text2": 1, "text3": 1, "picture": 1}
    driver.step()
    assert driver.step()["picture"] == 6
    driver.run_to_end()


def test_keys_of_a_prompt_that_all_sees_all_are_shared_by_equal_prompts_alone():
    driver = Driver(a_scheduler())
    for request_id, end in (("first", 3), ("other", 4), ("same", 3)):
        driver.add(a_media_request(request_id, [CAT, 1, 2, 5, 6, end], Bidirectional.PROMPT))
        driver.run_to_end()
    cached = [driver.outputs[request_id][-1].usage for request_id in ("first", "other", "same")]
    assert [usage[2] for usage in cached if usage] == [0, 0, 8]


def test_the_same_tokens_with_another_picture_share_nothing():
    driver = Driver(a_scheduler())
    for request_id, item in (("cat", CAT), ("dog", DOG)):
        driver.add(a_media_request(request_id, [1, 2, item, 5, 6, 7]))
        driver.run_to_end()
    assert driver.outputs["dog"][-1].usage == (11, 8, 0)
    assert PLACEHOLDER in a_media_request("cat", [CAT]).prompt_token_ids


@pytest.mark.parametrize("other_arrives", [True, False])
def test_a_request_that_is_preempted_after_its_first_token_needs_nobody_for_its_embeddings(other_arrives: bool):
    """By then the frontend has let go of the file, and nobody else need have the embeddings. The room for embeddings is in use by
    another request, which may still wait for its own."""
    driver = Driver(a_scheduler(num_blocks=8, enable_prefix_caching=False, max_embeddings=6, max_num_batched_tokens=64))
    first, picture = a_request("first", [1] * 10, max_tokens=14), a_media_request("picture", [1, CAT, 2], max_tokens=12)
    driver.add(first, picture)
    driver.deliver(*driver.fetches())
    driver.step()
    assert driver.outputs["picture"][0].token_ids
    driver.add(a_media_request("other", [1, DOG], max_tokens=1))
    dogs = driver.fetches()
    if other_arrives:
        driver.deliver(*dogs)
    while not picture.num_preemptions:
        driver.step()
        dogs += driver.fetches()
    for _ in range(100):
        driver.step()
        dogs += driver.fetches()
    assert {order.key[:3] for order in dogs} == {b"dog"}, "nobody has the cat any more"
    if not other_arrives:
        driver.deliver(dogs[-1])
    driver.run_to_end()
    assert driver.text("picture") == expected_output(seen(picture.prompt_token_ids, picture.media), picture.sampling)
    assert not driver.scheduler.embeddings.owner_ids()


def test_a_request_whose_embeddings_are_here_is_preempted_rather_than_one_whose_are_not():
    """The last in rank found its picture in the prefix cache, and the embeddings are gone: it could not be computed again."""
    driver = Driver(a_scheduler(num_blocks=16, max_embeddings=6, max_num_batched_tokens=64))
    driver.add(a_media_request("before", [*range(2), CAT, 5], max_tokens=1))
    driver.run_to_end()
    driver.add(a_request("first", [7] * 20, max_tokens=30), a_request("second", [8] * 10, max_tokens=20))
    driver.add(a_media_request("picture", [*range(2), CAT, 6], max_tokens=20))
    driver.scheduler.embeddings.clear_unused()
    while not driver.scheduler.num_preemptions:
        assert not driver.fetches()
        driver.step()
    preempted = [request for request in driver.scheduler._states.live.values() if request.num_preemptions]
    assert [request.request_id for request in preempted] == ["second"]
    driver.run_to_end()


def test_preempted_requests_keep_no_more_embeddings_than_the_kv_cache_has_tokens():
    """Each is preempted by the next, which has a better priority, and all of them wait with what they have computed."""
    driver = Driver(a_scheduler(num_blocks=8, max_embeddings=12))
    requests = [a_media_request(f"r{number}", [1, (b"p%02d" % number, (6,)), 2], max_tokens=20) for number in range(20)]
    for number, request in enumerate(requests):
        request.priority = 100 - number
        driver.add(request)
        for _ in range(6):
            driver.deliver(*driver.fetches())
            driver.step()
    assert driver.scheduler.num_preemptions > 10
    assert driver.scheduler.embeddings.kept_tokens <= 8 * 4
    driver.run_to_end()
    for request in requests:
        assert driver.text(request.request_id) == expected_output(seen(request.prompt_token_ids, request.media), request.sampling)


def test_a_request_whose_cached_prefix_was_given_away_while_it_waited_is_computed_all_the_same():
    driver = Driver(a_scheduler(num_blocks=8, max_num_seqs=1, max_num_batched_tokens=64))
    text = [1, 2, 3, 4]
    driver.add(a_request("first", [*text, 5], max_tokens=1))
    driver.step()  # leaves its first block behind
    driver.add(a_request("large", [*range(20, 40)], max_tokens=12))
    driver.step()
    driver.add(a_media_request("picture", [*text, CAT, 7]))
    driver.deliver(*driver.fetches())
    driver.run_to_end()  # the large one takes all blocks before the picture has its turn
    request = a_media_request("picture", [*text, CAT, 7])
    assert driver.text("picture") == expected_output(seen(request.prompt_token_ids, request.media), request.sampling)
    assert driver.outputs["picture"][-1].finish_reason is FinishReason.LENGTH

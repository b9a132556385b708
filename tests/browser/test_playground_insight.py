"""What only the playground shows: log probabilities of tokens, the timeline of a request, the load of the services."""

from __future__ import annotations

import asyncio
import math

import pytest
from playwright.async_api import expect
from support.fakes.frontend import FakeFrontend, Script
from support.playground import ABLE, OpenPage
from triptych.v1 import common_pb2, encoder_pb2, engine_pb2, generation_pb2

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]
SERVING = common_pb2.SERVER_STATE_SERVING


def frontend_that(script: Script) -> FakeFrontend:
    frontend = FakeFrontend()
    frontend.model, frontend.script = ABLE, script
    return frontend


def token(text: str, probability: float, *others: tuple[str, float]) -> generation_pb2.TokenLogprob:
    top = [(text, probability), *others]
    return generation_pb2.TokenLogprob(
        token=text,
        utf8=text.encode(),
        logprob=math.log(probability),
        top=[generation_pb2.TopLogprob(token=one, utf8=one.encode(), logprob=math.log(share)) for one, share in top],
    )


def uncertain() -> Script:
    # The two tokens of a character that is cut in the middle.
    first, second = (bytes([byte]) for byte in "é".encode())
    halves = [generation_pb2.TokenLogprob(token="\ufffd", utf8=half, logprob=math.log(0.5)) for half in (first, second)]
    tokens = [token("Paris", 0.75, ("Rome", 0.2)), token(" is", 0.999), *halves]
    deltas = [generation_pb2.ChoiceDelta(text=text, logprobs=own) for text, own in (("Paris is", tokens[:2]), ("é", tokens[2:]))]
    deltas[-1].finish_reason = common_pb2.FINISH_REASON_STOP
    return Script([deltas])


async def test_log_probabilities_on_hover_and_by_the_arrow_keys(open_page: OpenPage) -> None:
    async with open_page(frontend_that(uncertain())) as opened:
        card, tokens = opened.page.locator("#token-card"), opened.page.locator(".token")
        await opened.show("Settings")
        await opened.page.get_by_label("Log probabilities of tokens").check()
        await opened.page.get_by_label("Alternatives").fill("2")
        await opened.ask("Hi")
        await expect(tokens).to_have_text(["Paris", " is", "·", "é"])
        await expect(card).to_be_hidden()
        await tokens.first.hover()
        await expect(card).to_contain_text("75.0 %")
        await expect(card.locator("tr")).to_have_count(2)
        await expect(card.locator("tr").nth(1)).to_contain_text("Rome20.0 %")
        await opened.page.get_by_role("heading", name="Timeline").hover()
        await expect(card).to_be_hidden()
        # By keyboard: one stop for all tokens, arrows within.
        await tokens.first.focus()
        await expect(card).to_contain_text("75.0 %")
        await opened.page.keyboard.press("ArrowRight")
        await expect(tokens.nth(1)).to_be_focused()
        await expect(card).to_contain_text("␣is")
        await opened.page.keyboard.press("End")
        await expect(card).to_contain_text("A9")
        await opened.page.keyboard.press("Escape")
        await expect(card).to_be_hidden()
        await opened.page.get_by_role("button", name="As text").click()
        await expect(opened.page.locator(".markdown:visible")).to_have_text("Paris isé")
    assert opened.frontend.request.options.sampling.logprobs == 2


def measured() -> Script:
    script = uncertain()
    script.usage = common_pb2.Usage(prompt_tokens=70, completion_tokens=4, cached_tokens=64, image_tokens=36)
    script.timings = common_pb2.Timings(preprocess_s=0.003, queue_s=0.001, prefill_s=0.02, decode_s=0.03)
    script.media = [
        generation_pb2.MediaReport(
            modality=common_pb2.MODALITY_IMAGE,
            key=b"1",
            num_tokens=36,
            tier=encoder_pb2.CACHE_TIER_LOCAL,
            source=common_pb2.EMBEDDING_SOURCE_ENCODER,
            fetch_s=0.002,
            transfer_s=0.001,
        ),
        generation_pb2.MediaReport(
            modality=common_pb2.MODALITY_IMAGE,
            key=b"2",
            num_tokens=36,
            tier=encoder_pb2.CACHE_TIER_MISS,
            source=common_pb2.EMBEDDING_SOURCE_ENCODER,
            encode=encoder_pb2.EncodeTimings(queue_s=0.001, decode_s=0.004, preprocess_s=0.002, encode_s=0.016),
        ),
    ]
    return script


async def test_the_timeline_shows_stages_and_cache_tiers(open_page: OpenPage) -> None:
    async with open_page(frontend_that(measured())) as opened:
        timeline = opened.page.locator("#timeline")
        await opened.ask("What is in these pictures?")
        rows = timeline.locator(".lane-row")
        await expect(rows).to_have_count(3)
        await expect(rows.nth(0)).to_contain_text("Preprocess3.0 ms")
        await expect(rows.nth(0)).to_contain_text("Prefill20 ms")
        await expect(rows.nth(1)).to_contain_text("Image 1 cache hit")
        await expect(rows.nth(1)).to_contain_text("Engine waited for it2.0 ms")
        await expect(rows.nth(2)).to_contain_text("Image 2 cache miss")
        await expect(rows.nth(2)).to_contain_text("Encode16 ms")
        await expect(timeline).to_contain_text("70 tokens, 64 cached")
        # The bars of a row are in proportion.
        widths = await rows.nth(0).locator(".stage").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
        assert widths[2] / widths[0] == pytest.approx(20 / 3, rel=0.01)
        assert sum(widths) == pytest.approx(100, abs=0.5)


async def test_the_timeline_of_an_earlier_answer(open_page: OpenPage) -> None:
    frontend = frontend_that(measured())
    async with open_page(frontend) as opened:
        await opened.ask("What is in these pictures?")
        later = measured()
        del later.media[:]
        frontend.script = later
        await opened.ask("And now?")
        rows = opened.page.locator(".lane-row")
        await expect(rows).to_have_count(1)
        await opened.page.get_by_role("button", name="Timeline").first.click()
        await expect(rows).to_have_count(3)


async def test_media_items_are_numbered_by_their_kind(open_page: OpenPage) -> None:
    script = measured()
    script.media.insert(1, generation_pb2.MediaReport(modality=common_pb2.MODALITY_AUDIO, key=b"3", num_tokens=9))
    async with open_page(frontend_that(script)) as opened:
        await opened.ask("What are these?")
        names = opened.page.locator(".lane-head > span:first-child")
        await expect(names).to_have_text(["Request", "Image 1 cache hit", "Audio", "Image 2 cache miss"])


async def test_escape_hides_the_card_first_and_then_stops_the_answer(open_page: OpenPage) -> None:
    script = uncertain()
    script.gate = asyncio.Semaphore(1)
    async with open_page(frontend_that(script)) as opened:
        await opened.show("Settings")
        await opened.page.get_by_label("Log probabilities of tokens").check()
        await opened.send("Hi")
        await opened.page.locator(".token").first.focus()
        await expect(opened.page.locator("#token-card")).to_be_visible()
        await opened.page.keyboard.press("Escape")
        await expect(opened.page.locator("#token-card")).to_be_hidden()
        await expect(opened.page.get_by_role("button", name="Stop")).to_be_visible()
        await opened.page.keyboard.press("Escape")
        await expect(opened.page.locator(".facts")).to_contain_text("stopped")


async def test_a_refused_load_is_not_asked_for_each_second(open_page: OpenPage) -> None:
    async with open_page(refusals=True) as opened:
        await opened.page.route("**/load", lambda route: route.fulfill(status=401, body="{}"))
        async with opened.page.expect_response("**/load"):
            pass
        before = len(opened.requests)
        await opened.page.wait_for_timeout(2500)
        assert opened.requests[before:] == []
        await expect(opened.page.locator("#load")).to_contain_text("status 401")


def instance(state: common_pb2.ServerState, id: str) -> common_pb2.Instance:  # noqa: A002 - as in the contract
    return common_pb2.Instance(id=id, state=state)


async def test_the_load_of_engines_and_caches_is_live(open_page: OpenPage) -> None:
    frontend = frontend_that(uncertain())
    engine = engine_pb2.Load(
        num_running=3,
        num_waiting=5,
        num_blocks=100,
        num_free_blocks=25,
        block_size=16,
        prefix_cache_queries=10,
        prefix_cache_hits=9,
    )
    stats = encoder_pb2.GetStatsResponse(num_entries=4, used_bytes=1 << 20, capacity_bytes=1 << 30, num_local_hits=3, num_misses=1)
    frontend.load = generation_pb2.GetLoadResponse(
        instance=instance(SERVING, "f"),
        num_live_requests=2,
        engines=[
            generation_pb2.EngineLoad(instance=instance(SERVING, "e"), load=engine),
            generation_pb2.EngineLoad(instance=instance(common_pb2.SERVER_STATE_UNAVAILABLE, "")),
        ],
        encoders=[generation_pb2.EncoderLoad(instance=instance(SERVING, "c"), stats=stats)],
    )
    async with open_page(frontend) as opened:
        cards = opened.page.locator(".service")
        await expect(cards).to_have_count(4)
        await expect(cards.nth(0)).to_contain_text("Running3")
        await expect(cards.nth(0)).to_contain_text("1,200 of 1,600 tokens")
        await expect(cards.nth(0)).to_contain_text("90 % found")
        await expect(cards.nth(0).get_by_role("meter")).to_have_attribute("aria-valuenow", "75")
        await expect(cards.nth(1)).to_contain_text("unavailable")
        await expect(cards.nth(2)).to_contain_text("1.0 MB of 1.0 GB")
        await expect(cards.nth(2)).to_contain_text("75 % found")
        frontend.load.engines[0].load.num_running = 8
        await expect(cards.nth(0)).to_contain_text("Running8")

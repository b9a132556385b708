"""`LLM` with services of its own and the real small models: texts, pictures, vectors, as the REST interface has them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image
from triptych import LLM, BeamSearchParams, GenerationError, SamplingParams
from triptych.errors import ContextLengthError, InvalidRequestError, UnimplementedError

pytestmark = pytest.mark.model
_SHAPES = Path(__file__).resolve().parents[3] / "examples" / "three-shapes.png"
GREEDY = SamplingParams(temperature=0, max_tokens=12)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2-135m-vision", max_num_seqs=32, max_model_len=1024) as running:
        yield running


@pytest.fixture(scope="module")
def embedder() -> Iterator[LLM]:
    with LLM("all-minilm-l6-v2") as running:
        yield running


def post(llm: LLM, route: str, **body: object) -> dict:
    assert llm.server is not None
    addresses = llm.server.addresses
    body = {"model": addresses.model, **body}
    response = httpx.post(f"{addresses.gateway}/v1/{route}", json=body, timeout=60, trust_env=False)
    return dict(response.raise_for_status().json())


def test_greedy_texts_in_order_are_those_of_the_rest_interface(llm: LLM) -> None:
    prompts = [f"The number {number} is" for number in range(70)]
    outputs = llm.generate(iter(prompts), GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    for output in outputs[::23]:
        choice = post(llm, "completions", prompt=output.prompt, temperature=0, max_tokens=12)["choices"][0]
        assert output.outputs[0].text == choice["text"]
    (output,) = llm.chat(QUESTION, GREEDY, use_tqdm=False)
    answer = post(llm, "chat/completions", messages=QUESTION, temperature=0, max_tokens=12)["choices"][0]
    assert output.outputs[0].text == answer["message"]["content"]
    assert "Paris" in output.outputs[0].text


def test_prompts_are_not_paced_as_for_those_who_read(llm: LLM) -> None:
    assert llm.server is not None
    assert {"--engine.max-step-ms=0", "--engine.max-num-seqs=32"} <= set(psutil.Process(llm.server.pid).cmdline())


def test_attributes_of_a_result(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=1, n=2)
    (output,) = llm.generate("The capital of France is", params, use_tqdm=False)
    assert len(output.outputs) == 2
    assert output.finished
    first = output.outputs[0]
    assert first.finish_reason == "length"
    assert first.logprobs is not None
    assert [next(iter(at)) for at in first.logprobs] == first.token_ids
    assert [at[token].rank for at, token in zip(first.logprobs, first.token_ids, strict=True)] == [1, 1, 1]
    assert "".join(at[token].decoded_token or "" for at, token in zip(first.logprobs, first.token_ids, strict=True)) == first.text
    assert first.cumulative_logprob == pytest.approx(
        sum(at[token].logprob for at, token in zip(first.logprobs, first.token_ids, strict=True))
    )
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [next(iter(at)) for at in output.prompt_logprobs[1:] if at] == output.prompt_token_ids[1:]
    (same,) = llm.generate({"prompt_token_ids": output.prompt_token_ids}, GREEDY, use_tqdm=False)
    assert same.prompt is None
    assert same.prompt_token_ids == output.prompt_token_ids
    assert same.outputs[0].text.startswith(first.text)


def test_params_of_each_prompt(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=3), SamplingParams(temperature=0, max_tokens=60, stop=["."])]
    short, stopped = llm.generate(["The sky is", "The sun is"], params, use_tqdm=False)
    assert len(short.outputs[0].token_ids) == 3
    assert stopped.outputs[0].stop_reason == "."
    assert stopped.outputs[0].finish_reason == "stop"


def test_a_truncated_prompt_is_that_of_its_result(llm: LLM) -> None:
    text = "One, two, three, four, five"
    (whole,) = llm.generate(text, GREEDY, use_tqdm=False)
    params = SamplingParams(temperature=0, max_tokens=2, truncate_prompt_tokens=3, prompt_logprobs=0, n=2)
    (cut,) = llm.generate(text, params, use_tqdm=False)
    assert cut.prompt == text
    assert cut.prompt_token_ids == whole.prompt_token_ids[-3:]
    assert cut.prompt_logprobs is not None
    assert [[*at] for at in cut.prompt_logprobs[1:] if at] == [[token] for token in cut.prompt_token_ids[1:]]


@pytest.mark.long
def test_a_killed_engine_loses_no_prompt(llm: LLM) -> None:
    assert llm.server is not None
    services = psutil.Process(llm.server.pid).children()
    (engine,) = [process for process in services if "triptych_engine" in process.cmdline()]
    expected = [f"The number {number} is" for number in range(60)]

    def prompts() -> Iterator[str]:
        for number, prompt in enumerate(expected):
            if number == 50:
                # The first of them run.
                engine.kill()
            yield prompt

    outputs = llm.generate(prompts(), GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == expected
    again = llm.generate(expected, GREEDY, use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == [output.outputs[0].text for output in again]


def test_pictures_by_all_ways_give_the_same_text(llm: LLM) -> None:
    image = Image.open(io.BytesIO(_SHAPES.read_bytes())).convert("RGB")
    question = {"type": "text", "text": "Where is the blue square?"}
    by_chat = llm.chat(
        [
            [{"role": "user", "content": [{"type": "image", "image": source}, question]}]
            for source in (_SHAPES, _SHAPES.read_bytes(), image, np.asarray(image))
        ],
        GREEDY,
        use_tqdm=False,
    )
    # The rendered prompt has one placeholder, and its tokens are all of the picture's.
    prompt = by_chat[0].prompt
    assert prompt is not None
    assert prompt.count("<image>") == 1
    assert len(by_chat[0].prompt_token_ids) == by_chat[0].usage.prompt_tokens
    (by_prompt,) = llm.generate({"prompt": prompt, "multi_modal_data": {"image": image}}, GREEDY, use_tqdm=False)
    assert {output.outputs[0].text for output in [*by_chat, by_prompt]} == {by_prompt.outputs[0].text}
    assert by_prompt.prompt_token_ids == by_chat[0].prompt_token_ids
    assert [report.num_tokens for report in by_prompt.media] == [by_prompt.usage.image_tokens]


def test_pictures_are_made_as_there_is_room(llm: LLM) -> None:
    dice = np.random.default_rng(0)
    prompt = "<image>What is this?"

    def prompts() -> Iterator[dict]:
        for _ in range(12):
            yield {"prompt": prompt, "multi_modal_data": {"image": dice.integers(0, 255, (700, 700, 3), dtype=np.uint8)}}

    outputs = llm.generate(prompts(), SamplingParams(max_tokens=2), use_tqdm=False)
    assert len(outputs) == 12
    assert all(len(output.media) == 1 for output in outputs)


def test_beam_search_finds_what_greedy_decoding_may_miss(llm: LLM) -> None:
    (found,) = llm.beam_search("The capital of France is", BeamSearchParams(beam_width=3, max_tokens=6))
    scores = [beam.cum_logprob for beam in found.sequences]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=0)
    (greedy,) = llm.generate("The capital of France is", params, use_tqdm=False)
    assert scores[0] >= (greedy.outputs[0].cumulative_logprob or 0) - 1e-3
    assert found.sequences[0].text.startswith("The capital of France is")
    assert found.sequences[0].tokens[: len(greedy.prompt_token_ids)] == greedy.prompt_token_ids


def test_bad_prompts_by_their_index(llm: LLM) -> None:
    prompts = ["good", "too long " * 2000, {"prompt": "<image>", "multi_modal_data": {"image": b"no picture"}}, "good"]
    with pytest.raises(GenerationError) as raised:
        llm.generate(prompts, GREEDY, use_tqdm=False)
    assert raised.value.index in (1, 2)
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False, raise_on_error=False)
    assert [getattr(output, "index", None) for output in outputs] == [None, 1, 2, None]
    assert isinstance(outputs[1].__cause__, ContextLengthError)
    assert isinstance(outputs[2].__cause__, InvalidRequestError)
    assert outputs[0].outputs[0].text == outputs[3].outputs[0].text


def test_a_bar_is_seen(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], SamplingParams(max_tokens=2))
    shown = capfd.readouterr().err
    assert "Processed prompts: 100%" in shown
    assert "2/2" in shown
    assert "output: " in shown


def test_a_second_llm_joins_the_services_of_the_first(llm: LLM) -> None:
    assert llm.server is not None
    with LLM(address=llm.server.addresses.frontends[0]) as second:
        assert second.server is None
        assert second.generate("The sky is", GREEDY, use_tqdm=False)[0].outputs[0].text
    assert llm.generate("The sky is", GREEDY, use_tqdm=False)


@pytest.mark.long
def test_vectors_scores_and_what_is_refused(embedder: LLM) -> None:
    texts = [f"text number {number}" for number in range(70)]
    outputs = embedder.embed(texts, use_tqdm=False)
    data = post(embedder, "embeddings", input=[texts[0], texts[69]])["data"]
    for output, entry in zip((outputs[0], outputs[69]), data, strict=True):
        np.testing.assert_allclose(output.outputs.embedding, entry["embedding"], atol=1e-5)
    (pooled,) = embedder.encode("hello there", use_tqdm=False)
    assert pooled.outputs.data.shape == (384,)
    (tokens,) = embedder.encode([[101, 7592, 102]], pooling_task="token_embed", use_tqdm=False)
    assert tokens.outputs.data.shape == (3, 384)
    scores = [output.outputs.score for output in embedder.score("a cat", ["a kitten", "a lorry", "a cat"], use_tqdm=False)]
    assert scores[2] == pytest.approx(1, abs=1e-3)
    assert scores[0] > scores[1]
    with pytest.raises(GenerationError, match="does not generate") as raised:
        embedder.generate("hello", use_tqdm=False)
    assert isinstance(raised.value.__cause__, UnimplementedError)

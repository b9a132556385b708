"""The real default model in float32: greedy text equals that of the text model in transformers, alone and in company."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from support.builders.engine import a_request
from support.drivers.engine import EngineDriver, assert_greedy
from triptych_common.model.store import TEXT_MODEL, resolve_model
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]
EOS = 2
MAX_TOKENS = 20
_SYSTEM = "You are a careful assistant. Answer in one sentence and do not guess. " * 3
QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "How many legs does a spider have?",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "What is 17 plus 25?",
    "Who wrote Hamlet?",
    "Give a synonym for 'happy'.",
    "What does HTTP stand for?",
    "List two uses of copper.",
    "Is the earth flat?",
    "Explain photosynthesis.",
    "What comes after Tuesday?",
    "Define entropy.",
    "Complete: to be or not to",
    "Which planet is the largest?",
    "What is the boiling point of water?",
    "Name a river in Egypt.",
    "Say hello in French.",
    "What is a prime number?",
    "Describe a violin.",
]


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve_model(TEXT_MODEL)


@pytest.fixture(scope="module")
def prompts(path: Path) -> list[list[int]]:
    """Chats that share a long system prompt, some texts that share nothing, and one of 300 tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    rng = random.Random(0)
    made = []
    for index, question in enumerate(QUESTIONS):
        if index % 3 == 2:
            made.append(tokenizer(question)["input_ids"])
            continue
        chat = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]
        made.append(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    words = ["sea", "river", "mountain", "bird", "engine", "letter", "garden", "winter", "copper", "violin", "harbour"]
    made.append(tokenizer(" ".join(rng.choice(words) for _ in range(300)))["input_ids"])
    return made


@pytest.fixture(scope="module")
def driver() -> EngineDriver:
    return EngineDriver(resolve_model(DEFAULT_MODEL), max_model_len=512, num_blocks=400)


@pytest.fixture(scope="module")
def alone(driver: EngineDriver, prompts: list[list[int]]) -> list[list[int]]:
    """What each prompt gives with nothing beside it. `test_alone` compares it with transformers."""
    return [driver.run(driver.scheduler(), [request])[request.request_id].token_ids for request in requests_for(prompts)]


def requests_for(prompts: list[list[int]]) -> list:
    return [a_request(f"r{i}", prompt, max_tokens=MAX_TOKENS, stop_token_ids=frozenset({EOS})) for i, prompt in enumerate(prompts)]


def test_what_sees_changes_no_prompt_of_text(path: Path, prompts: list[list[int]]) -> None:
    from transformers import AutoTokenizer

    alone, joined = (AutoTokenizer.from_pretrained(each) for each in (path, resolve_model(DEFAULT_MODEL)))
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        made = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for tokenizer in (alone, joined)]
        assert made[0] == made[1]
    texts = [alone.decode(prompt) for prompt in prompts]
    assert [joined(text)["input_ids"] for text in texts] == [alone(text)["input_ids"] for text in texts]


def test_alone(path: Path, prompts: list[list[int]], alone: list[list[int]]):
    assert len(prompts) >= 20
    assert_greedy(path, prompts, alone, MAX_TOKENS, EOS)


def test_in_a_ragged_batch_with_chunked_prefill_and_prefix_hits(
    driver: EngineDriver, prompts: list[list[int]], alone: list[list[int]]
):
    scheduler = driver.scheduler(max_num_batched_tokens=48)
    generated = driver.run(scheduler, requests_for(prompts), arrivals=[2 * i for i in range(len(prompts))])
    assert [generated[f"r{i}"].token_ids for i in range(len(prompts))] == alone
    assert scheduler.kv_cache.prefix_cache_hits > 500
    again = driver.run(scheduler, requests_for(prompts))
    assert [again[f"r{i}"].token_ids for i in range(len(prompts))] == alone


def test_under_preemption(driver: EngineDriver, prompts: list[list[int]], alone: list[list[int]]):
    scheduler = driver.scheduler(num_blocks=26, max_num_batched_tokens=64)
    generated = driver.run(scheduler, requests_for(prompts))
    assert scheduler.num_preemptions > 0
    assert [generated[f"r{i}"].token_ids for i in range(len(prompts))] == alone


def test_a_seeded_sample_is_the_same_whatever_else_is_in_the_batch(driver: EngineDriver, prompts: list[list[int]]):
    def seeded() -> list:
        return [
            a_request(
                f"s{seed}",
                prompts[0],
                max_tokens=MAX_TOKENS,
                temperature=0.9,
                top_p=0.95,
                seed=seed,
                stop_token_ids=frozenset({EOS}),
            )
            for seed in range(4)
        ]

    alone = [driver.run(driver.scheduler(), [request])[request.request_id].token_ids for request in seeded()]
    assert len({tuple(tokens) for tokens in alone}) > 1
    company = [a_request(f"c{i}", prompt, max_tokens=MAX_TOKENS, temperature=1.2, seed=i) for i, prompt in enumerate(prompts)]
    generated = driver.run(driver.scheduler(max_num_batched_tokens=48), company[:9] + seeded() + company[9:])
    assert [generated[f"s{seed}"].token_ids for seed in range(4)] == alone


def test_log_probabilities_equal_transformers(path: Path, prompts: list[list[int]], driver: EngineDriver):
    """Of a prompt and of an answer, whose tokens are drawn."""
    from transformers import AutoModelForCausalLM

    prompt, settings = prompts[0], {"max_tokens": MAX_TOKENS, "temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.2}
    generated = driver.run(driver.scheduler(), [a_request("x", prompt, logprobs=5, prompt_logprobs=5, **settings)])["x"]
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        reference = model(torch.tensor([prompt + generated.token_ids])).logits[0].log_softmax(-1)
    entries = generated.prompt_logprobs + generated.logprobs
    assert len(entries) == len(prompt) - 1 + MAX_TOKENS
    for line, entry, token in zip(reference, entries, (prompt + generated.token_ids)[1:], strict=False):
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(line[token].item(), abs=1e-3)
        assert entry.top_logprobs == pytest.approx(line.topk(5).values.tolist(), abs=1e-3)
        assert [line[each].item() for each in entry.top_token_ids] == pytest.approx(entry.top_logprobs, abs=1e-3)


def test_bfloat16_on_the_optimised_path_stays_close_to_float32(path: Path, prompts: list[list[int]], driver: EngineDriver):
    """Packed weights, fp32 residual stream, exact top logits: closer to float32 than transformers' own bfloat16."""
    from transformers import AutoModelForCausalLM

    ids = prompts[0]
    exact = driver.run(driver.scheduler(), [a_request("x", ids, max_tokens=0, prompt_logprobs=1)])["x"].prompt_logprobs
    ours = EngineDriver(path, dtype=torch.bfloat16, max_model_len=512, num_blocks=64)
    wide = ours.run(ours.scheduler(), [a_request("x", ids, max_tokens=0, prompt_logprobs=1)])["x"].prompt_logprobs
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        plain = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    likeliest = [entry.top_logprobs[0] for entry in exact]
    error = sum(abs(a - b.top_logprobs[0]) for a, b in zip(likeliest, wide, strict=True)) / len(exact)
    plain_error = sum(abs(a - plain[i].max().item()) for i, a in enumerate(likeliest)) / len(exact)
    assert error < 0.8 * plain_error
    assert error < 0.03

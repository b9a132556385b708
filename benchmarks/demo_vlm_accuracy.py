"""Right answers of the demo vision-language model, asked over REST: `python -m benchmarks.demo_vlm_accuracy --url http://127.0.0.1:8000`.

Scenes that its training never saw, drawn from a fixed seed, each sent once as PNG or JPEG with one question, greedily. Any server
with OpenAI's chat completions will do. Exact match, whatever the case and punctuation; ends with 1 when fewer are right than
--least asks for.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys

import httpx

from tools.demo_vlm.dataset.exam import ExamItem, make_exam, mark


async def ask(client: httpx.AsyncClient, model: str, item: ExamItem) -> str:
    """The answer about one picture. Raises httpx.HTTPStatusError where there is none."""
    image = f"data:{item.media_type};base64,{base64.b64encode(item.image).decode()}"
    content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": item.question.text}]
    body = {"model": model, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 32}
    response = await client.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    answer: str = response.json()["choices"][0]["message"]["content"]
    return answer


async def ask_all(options: argparse.Namespace, items: list[ExamItem]) -> list[str]:
    """Answers in the order of the items, so many asked at a time."""
    limits = httpx.Limits(max_connections=options.concurrency)
    # Waiting for one of the connections is no failure.
    timeout = httpx.Timeout(options.timeout_s, pool=None)
    async with httpx.AsyncClient(base_url=options.url, timeout=timeout, limits=limits) as client:
        return await asyncio.gather(*(ask(client, options.model, item) for item in items))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2-135m-vision")
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--seed", default="test", help="another seed, other scenes; not `train`")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--timeout-s", type=float, default=300)
    parser.add_argument("--least", type=float, default=0.95, help="least share of right answers")
    options = parser.parse_args()
    if options.seed.startswith("train"):
        parser.error("--seed must not begin with `train`: those scenes were trained on")
    items = make_exam(options.scenes, options.seed)
    result = mark(items, asyncio.run(ask_all(options, items)))
    print("\n".join(result.lines()))
    sys.exit(result.accuracy < options.least)


if __name__ == "__main__":
    main()

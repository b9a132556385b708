"""Many calls of one request, of which some run at the same time: the pieces of a long file leave room for other requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from triptych_gateway.frontends.calls import FrontendCall, Response

#: Responses since the last ones, each with the index of its call.
Responses = list[tuple[int, Response]]


async def in_turns(
    calls: Sequence[FrontendCall], start: Callable[[FrontendCall], AsyncGenerator[Responses, None]], at_once: int
) -> AsyncGenerator[Responses, None]:
    """The responses of the calls. They start in their order. The first error ends all of them; closing the generator too.

    Args:
        start: the responses of one call, which has the index 0 in them.
        at_once: most calls that run at the same time.
    """
    # A reader that is slow stops the workers. Each connection then merges what waits, as it does for one call.
    news = asyncio.Queue[Responses | Exception | None](maxsize=1)
    waiting = list(enumerate(calls))[::-1]
    del calls  # a call's file can be freed as soon as a frontend has answered

    async def work() -> None:
        try:
            while waiting:
                place, call = waiting.pop()
                responses = start(call)
                del call
                async with aclosing(responses):
                    async for batch in responses:
                        await news.put([(place, response) for _, response in batch])
            await news.put(None)
        except Exception as error:
            await news.put(error)

    workers = [asyncio.create_task(work()) for _ in range(min(at_once, len(waiting)))]
    try:
        num_working = len(workers)
        while num_working:
            batch = await news.get()
            if isinstance(batch, Exception):
                raise batch
            if batch is None:
                num_working -= 1
            else:
                yield batch
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

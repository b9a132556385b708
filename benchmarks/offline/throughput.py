"""Output tokens per second of `LLM.generate` beside the engine alone: the same token ids and sampling, by turns in one sitting.

    python -m benchmarks.offline.throughput [--model MODEL] [--prompts 1000] [--rounds 3]

"The engine alone" is a client that sends all requests at once on one Session of the engine that `LLM` started, and counts the
tokens of the answers. What is missing to a ratio of 1 is the price of `LLM`, of the frontend (tokenizing, text of the tokens), and
of their calls. The prefix cache has the prompts of no earlier round.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence

import grpc
from triptych import LLM, SamplingParams
from triptych.v1 import engine_pb2, engine_pb2_grpc

from benchmarks.harness.machine import BusyMeter
from benchmarks.harness.sitting import MAX_BUSY_PERCENT, check_positive, new_parser
from benchmarks.harness.texts import texts

_FEWEST_WORDS, _MOST_WORDS = 16, 128
_FEWEST_TOKENS, _MOST_TOKENS = 16, 128
#: How long the machine is watched before the services start, in seconds.
_BUSY_S = 2.0


def engine_alone(address: str, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], salt: str) -> float:
    """Output tokens per second of all requests together."""
    requests = [
        engine_pb2.EngineRequest(
            request_id=f"{salt}-{index}", prompt_token_ids=ids, sampling=each.to_options().sampling, cache_salt=salt
        )
        for index, (ids, each) in enumerate(zip(prompts, params, strict=True))
    ]
    is_done = threading.Event()

    def send() -> Iterator[engine_pb2.SessionRequest]:
        yield engine_pb2.SessionRequest(add=requests)
        # The end of this stream would abort the requests.
        is_done.wait()

    started_s, num_tokens, num_ended = time.perf_counter(), 0, 0
    with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", 64 << 20)]) as channel:
        for response in engine_pb2_grpc.EngineServiceStub(channel).Session(send()):
            for output in response.outputs:
                assert not output.HasField("error"), output.error
                num_tokens += len(output.token_ids)
                num_ended += bool(output.finish_reason)
            if num_ended == len(requests):
                break
        elapsed_s = time.perf_counter() - started_s
        is_done.set()
    return num_tokens / elapsed_s


def offline(llm: LLM, prompts: Sequence[str], params: Sequence[SamplingParams], salt: str) -> float:
    """Output tokens per second of one `generate`."""
    started_s = time.perf_counter()
    outputs = llm.generate([{"prompt": text, "cache_salt": salt} for text in prompts], params, use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in outputs) / (time.perf_counter() - started_s)


def run(llm: LLM, num_prompts: int, num_rounds: int) -> None:
    """Print the tokens per second of both, and their ratio, in each round."""
    assert llm.server is not None
    dice = random.Random(0)
    prompts = texts(num_prompts, _FEWEST_WORDS, _MOST_WORDS)
    params = [
        SamplingParams(temperature=0, ignore_eos=True, max_tokens=dice.randint(_FEWEST_TOKENS, _MOST_TOKENS)) for _ in prompts
    ]
    first = [SamplingParams(temperature=0, max_tokens=1)] * num_prompts
    token_ids = [output.prompt_token_ids for output in llm.generate(prompts, first, use_tqdm=False)]
    print(f"{num_prompts} prompts, {sum(map(len, token_ids))} tokens; {sum(each.max_tokens or 0 for each in params)} output tokens")
    ratios = []
    for number in range(num_rounds):
        measures = {
            "alone": lambda: engine_alone(llm.server.addresses.engines[0], token_ids, params, f"alone-{number}"),  # noqa: B023
            "offline": lambda: offline(llm, prompts, params, f"offline-{number}"),  # noqa: B023
        }
        # Who goes first changes, so that neither always has the warmer machine.
        rates = {name: measures[name]() for name in (sorted(measures) if number % 2 == 0 else sorted(measures, reverse=True))}
        ratios.append(rates["offline"] / rates["alone"])
        print(
            f"round {number + 1}: engine alone {rates['alone']:.0f} tok/s, LLM.generate {rates['offline']:.0f} tok/s, "
            f"ratio {ratios[-1]:.3f}",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.3f}")


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--prompts", type=int, default=1000, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    args = parser.parse_args()
    check_positive(parser, args.prompts, args.rounds)
    # Before the services start: an engine takes the memory of its KV cache for some seconds after it is ready.
    meter = BusyMeter()
    time.sleep(_BUSY_S)
    if (busy := meter.percent()["all"]) > MAX_BUSY_PERCENT:
        print(f"warning: with nothing under load the cores are {busy:.0f} % busy; no figure of this sitting can be trusted")
    with LLM(args.model) as llm:
        run(llm, args.prompts, args.rounds)


if __name__ == "__main__":
    main()

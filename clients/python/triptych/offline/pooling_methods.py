"""Methods of `LLM` for models that generate nothing: vectors, classes, scores."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from triptych.errors import InvalidRequestError
from triptych.offline import outputs
from triptych.offline.calls.batcher import Batcher
from triptych.offline.calls.progress import ProgressBar, UseTqdm
from triptych.offline.calls.runtime import Outcome, Runtime
from triptych.offline.prompts import Prompt, Prompts, each_prompt, read_prompt
from triptych.v1 import common_pb2, generation_pb2

PoolingTask = Literal["embed", "token_embed", "classify"]
Input = generation_pb2.EmbedInput


@dataclass(kw_only=True)
class PoolingParams:
    """How inputs are pooled.

    Args:
        truncate_prompt_tokens: cut inputs to this many tokens; -1: as many as the model takes. None: longer ones are refused.
        dimensions: length of the vectors, for models whose vectors can be cut.
        use_activation: of vectors: scale them to length 1. Of classes and scores: apply the model's activation. None: as the model
            was made.
    """

    truncate_prompt_tokens: int | None = None
    dimensions: int | None = None
    use_activation: bool | None = None

    def fields(self, activation: str) -> dict[str, Any]:
        """The fields of a request, of which `activation` is the name of the last one."""
        truncate_to = 0 if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens
        return {"truncate_to": truncate_to, activation: self.use_activation}


class PoolingMethods:
    """`encode`, `embed`, `classify` and `score`."""

    _runtime: Runtime

    def encode(
        self,
        prompts: Prompts,
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: UseTqdm = True,
        pooling_task: PoolingTask | None = None,
        raise_on_error: bool = True,
    ) -> list[outputs.PoolingRequestOutput]:
        """Pool the hidden states of inputs.

        Args:
            prompts: one input, or any iterable of inputs. An input is text, token ids, or a dictionary with one of them.
            pooling_task: embed: a vector for each input. token_embed: a vector for each token. classify: a value for each label.
                None: the first of them that the model can do.
            use_tqdm, raise_on_error: as of `generate`.

        Returns:
            the results, in the order of the inputs; `outputs.data` is a float32 array.

        Raises:
            GenerationError: an input failed. It has the input's index and the cause.
        """
        task = pooling_task or self._default_task()
        if task not in get_args(PoolingTask):
            known = ", ".join(get_args(PoolingTask))
            raise InvalidRequestError(f"pooling_task {task!r} is not one of {known}", field="pooling_task", limit=known, value=task)

        def output(request_id: str, token_ids: list[int], data: np.ndarray, labels: list[str]) -> Any:
            return outputs.PoolingRequestOutput(request_id, token_ids, outputs.PoolingOutput(data))

        return self._pool(each_prompt(prompts), _read_one, self._ask(task, pooling_params), output, use_tqdm, raise_on_error)

    def embed(
        self,
        prompts: Prompts,
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: UseTqdm = True,
        raise_on_error: bool = True,
    ) -> list[outputs.EmbeddingRequestOutput]:
        """A vector for each input: `outputs.embedding`. Arguments and errors are those of `encode`."""

        def output(request_id: str, token_ids: list[int], data: np.ndarray, labels: list[str]) -> Any:
            return outputs.EmbeddingRequestOutput(request_id, token_ids, outputs.EmbeddingOutput(data.tolist()))

        return self._pool(each_prompt(prompts), _read_one, self._ask("embed", pooling_params), output, use_tqdm, raise_on_error)

    def classify(
        self,
        prompts: Prompts,
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: UseTqdm = True,
        raise_on_error: bool = True,
    ) -> list[outputs.ClassificationRequestOutput]:
        """A value for each label: `outputs.probs`, and `outputs.labels`. Arguments and errors are those of `encode`."""

        def output(request_id: str, token_ids: list[int], data: np.ndarray, labels: list[str]) -> Any:
            return outputs.ClassificationRequestOutput(request_id, token_ids, outputs.ClassificationOutput(data.tolist(), labels))

        return self._pool(each_prompt(prompts), _read_one, self._ask("classify", pooling_params), output, use_tqdm, raise_on_error)

    def score(
        self,
        text_1: Prompts,
        text_2: Prompts,
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: UseTqdm = True,
        raise_on_error: bool = True,
    ) -> list[outputs.ScoringRequestOutput]:
        """How well texts fit together, pair by pair: `outputs.score`.

        Args:
            text_1: one text, which is paired with each of `text_2`, or as many texts.
            pooling_params, use_tqdm, raise_on_error: as of `encode`.

        Raises:
            GenerationError: a pair failed. It has the pair's index and the cause.
            ValueError: the numbers of texts do not fit.
        """
        firsts, seconds = [*each_prompt(text_1)], [*each_prompt(text_2)]
        if len(firsts) not in (1, len(seconds)):
            raise ValueError(f"text_1 has {len(firsts)} texts and text_2 has {len(seconds)}; text_1 has 1, or as many as text_2")
        pairs = [*zip(firsts * len(seconds) if len(firsts) == 1 else firsts, seconds, strict=True)]
        fields = (pooling_params or PoolingParams()).fields("activation")

        async def ask(inputs: Sequence[tuple[Input, Input]]) -> _Answer:
            queries = [first for first, _ in inputs]
            # A query that all have in common is computed once.
            queries = queries[:1] if all(query == queries[0] for query in queries) else queries
            documents = [second for _, second in inputs]
            request = generation_pb2.ScoreRequest(model=self._runtime.model.name, queries=queries, documents=documents, **fields)
            response = await self._runtime.call(self._runtime.generation.Score, request)
            return response, response.scores, ()

        def output(request_id: str, token_ids: list[int], data: float, labels: list[str]) -> Any:
            return outputs.ScoringRequestOutput(request_id, token_ids, outputs.ScoringOutput(data))

        return self._pool(pairs, _read_pair, ask, output, use_tqdm, raise_on_error)

    def _default_task(self) -> PoolingTask:
        tasks = self._runtime.model.capabilities.tasks
        return "classify" if common_pb2.TASK_CLASSIFY in tasks and common_pb2.TASK_EMBED not in tasks else "embed"

    def _ask(self, task: PoolingTask, params: PoolingParams | None) -> _Ask:
        return functools.partial(self._classify if task == "classify" else self._embed, task, params or PoolingParams())

    async def _embed(self, task: PoolingTask, params: PoolingParams, inputs: Sequence[Input]) -> _Answer:
        fields = {"model": self._runtime.model.name, "dimensions": params.dimensions, **params.fields("normalize")}
        kind = common_pb2.TASK_EMBED if task == "embed" else common_pb2.TASK_TOKEN_EMBED
        request = generation_pb2.EmbedRequest(inputs=inputs, task=kind, packed=True, **fields)
        response = await self._runtime.call(self._runtime.generation.Embed, request)
        vectors = np.frombuffer(response.packed.inline, dtype="<f4").reshape(tuple(response.packed.shape))
        each = np.split(vectors, np.cumsum(response.packed_vectors)[:-1])
        # Of a vector per input there is one, and its array has one dimension.
        return response, each if task == "token_embed" else [array[0] for array in each], ()

    async def _classify(self, task: PoolingTask, params: PoolingParams, inputs: Sequence[Input]) -> _Answer:
        request = generation_pb2.ClassifyRequest(model=self._runtime.model.name, inputs=inputs, **params.fields("activation"))
        response = await self._runtime.call(self._runtime.generation.Classify, request)
        return response, [np.asarray(one.values, dtype=np.float32) for one in response.classifications], response.labels

    def _pool(
        self,
        items: Iterable[Any],
        read: Callable[[Any], tuple[Any, int]],
        ask: _Ask,
        output: Callable[[str, list[int], Any, list[str]], Any],
        use_tqdm: UseTqdm,
        raise_on_error: bool,
    ) -> list[Any]:
        """What `output` makes of each input: of its call's id, its token ids, its data and the labels."""

        async def send(inputs: Sequence[Any]) -> list[Outcome[Any]]:
            response, data, labels = await ask(inputs)
            ids = ([] if isinstance(one, tuple) else [*one.token_ids.ids] for one in inputs)
            pooled = [output(response.request_id, *each, [*labels]) for each in zip(ids, data, strict=True)]
            # The tokens of a call are counted with its first result.
            return [Outcome(one, 0 if index else response.usage.prompt_tokens, 0) for index, one in enumerate(pooled)]

        return self._runtime.run(items, read, Batcher(send).ask, ProgressBar(use_tqdm, items), raise_on_error=raise_on_error)


#: A response, the data of each input, and the labels.
_Answer = tuple[Any, Sequence[Any], Sequence[str]]
_Ask = Callable[[Sequence[Any]], Awaitable[_Answer]]


def _read_one(prompt: Prompt) -> tuple[Input, int]:
    request, text = read_prompt(prompt)
    if request.media:
        raise InvalidRequestError("inputs of pooling have no multi_modal_data", field="multi_modal_data")
    one = Input(token_ids=request.token_ids) if text is None else Input(text=text)
    return one, one.ByteSize()


def _read_pair(pair: tuple[Prompt, Prompt]) -> tuple[tuple[Input, Input], int]:
    (first, first_bytes), (second, second_bytes) = (_read_one(prompt) for prompt in pair)
    return (first, second), first_bytes + second_bytes

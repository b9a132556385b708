"""Methods of `LLM` that generate text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from triptych.offline.beam_search import BeamSearchParams, beam_search_output
from triptych.offline.calls.progress import ProgressBar, UseTqdm
from triptych.offline.calls.runtime import Runtime
from triptych.offline.generation import Generation, Params, chat_generation, complete_generation, generate
from triptych.offline.outputs import BeamSearchOutput, GenerationError, RequestOutput
from triptych.offline.prompts import Prompts, each_conversation, each_prompt, with_params
from triptych.requests.options import ChatOptions
from triptych.requests.types import Messages
from triptych.sampling_params import SamplingParams


class TextMethods:
    """`generate`, `chat` and `beam_search`."""

    _runtime: Runtime

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        *,
        raise_on_error: bool = True,
    ) -> list[RequestOutput]:
        """Generate texts that continue prompts.

        Args:
            prompts: one prompt, or any iterable of prompts, which is read as there is room for more requests. A prompt is text,
                token ids, or a dictionary `{"prompt": text}` or `{"prompt_token_ids": token_ids}`, also with `"multi_modal_data"`:
                `{"image": source}`, `{"audio": [source, source]}` ... for the placeholders of the prompt, in their order.
            sampling_params: of all prompts, or a sequence with those of each. None: `SamplingParams()`.
            use_tqdm: show a bar with the number of prompts and the tokens per second.
            raise_on_error: False: a prompt that failed has its GenerationError in the list instead of a result.

        Returns:
            the results, in the order of the prompts.

        Raises:
            GenerationError: a prompt failed. It has the prompt's index and the cause. The other requests are cancelled.
            TypeError: `sampling_params` are none.
            ValueError: `sampling_params` is not as long as `prompts`.
        """
        return self._generate(each_prompt(prompts), sampling_params, complete_generation, use_tqdm, raise_on_error)

    def chat(
        self,
        messages: Messages | Iterable[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        raise_on_error: bool = True,
    ) -> list[RequestOutput]:
        """Generate the next turn of conversations.

        The text is all that the model wrote, reasoning and tool calls included.

        Args:
            messages: one conversation, or any iterable of conversations. A conversation is a list of OpenAI's messages. Beside
                OpenAI's parts, content may have `{"type": "image", "image": source}`, and the same for audio and video; a source is
                a path, the bytes of a file, an address, a PIL image or an array.
            add_generation_prompt: end the prompt with the start of an assistant's turn.
            continue_final_message: go on with the last message, which must be the assistant's, instead of starting a turn.
            tools: functions that the chat template shows to the model, as of OpenAI.
            chat_template_kwargs: further variables of the chat template.
            sampling_params, use_tqdm, raise_on_error: as of `generate`. Returns and raises what `generate` does.
        """
        options: ChatOptions = {
            # A prompt that ends in an open message cannot begin a turn after it.
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "continue_final_message": continue_final_message,
            "tools": tools,
            "template_kwargs": chat_template_kwargs,
        }
        read = functools.partial(chat_generation, options=options)
        return self._generate(each_conversation(messages), sampling_params, read, use_tqdm, raise_on_error)

    def beam_search(
        self, prompts: Prompts, params: BeamSearchParams, use_tqdm: UseTqdm = False, *, raise_on_error: bool = True
    ) -> list[BeamSearchOutput]:
        """Find the likeliest texts that continue prompts.

        Args:
            prompts, use_tqdm, raise_on_error: as of `generate`; prompts have no media.

        Returns:
            for each prompt its texts, best first.

        Raises:
            GenerationError: a prompt failed.
        """
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"params must be BeamSearchParams, not {type(params).__name__}")
        outputs = self._generate(each_prompt(prompts), params, complete_generation, use_tqdm, raise_on_error, default=params)
        return [output if isinstance(output, GenerationError) else beam_search_output(output) for output in outputs]  # type: ignore[misc]

    def _generate(
        self,
        prompts: Iterable[Any],
        params: object,
        read: Callable[[Any, Params, str], tuple[Generation, int]],
        use_tqdm: UseTqdm,
        raise_on_error: bool,
        default: Params | None = None,
    ) -> list[Any]:
        return self._runtime.run(
            with_params(prompts, params, default or SamplingParams()),
            lambda item: read(*item, self._runtime.model.name),
            functools.partial(generate, self._runtime),
            ProgressBar(use_tqdm, prompts),
            raise_on_error=raise_on_error,
        )

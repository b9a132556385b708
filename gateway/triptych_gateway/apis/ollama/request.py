"""Converts Ollama's requests to the contract. Sets only what the client set.

Ollama's clients in Python and JavaScript leave the ids of tool calls out of a history. A tool's message then answers the first open
call of its tool.
"""

from __future__ import annotations

from collections.abc import Sequence

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.rpc.structs import to_struct

from triptych_gateway.apis.ollama.options import NO_OPTIONS, OllamaOptions
from triptych_gateway.apis.ollama.schema import ChatRequest, EmbeddingsRequest, EmbedRequest, GenerateRequest, OllamaMessage
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall, MediaFile
from triptych_gateway.wire.contract import ConvertedChat, check_all_taken, output_mode, tool
from triptych_gateway.wire.field_names import FieldNames
from triptych_gateway.wire.media import inline_file

_OPTIONS = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "logprobs": "top_logprobs",
}
#: The contract's names of options -> the client's.
_OPTION_NAMES: FieldNames = {
    "options.stop": "options.stop",
    "options.constraint": "format",
    "options.constraint.json_schema": "format",
    "options.truncate_prompt_tokens": "truncate",
    **dict.fromkeys(("options.sampling", "sampling"), "options"),
    **{f"{sampling}.{name}": given for sampling in ("options.sampling", "sampling") for name, given in _OPTIONS.items()},
    "reasoning": "think",
    "reasoning.effort": "think",
    "template_kwargs": "think",
}
#: What turns thinking on in chat templates. Unlike a level, these say nothing to a model that always thinks.
_THINKING = {"enable_thinking": True, "thinking": True}
EMBED_NAMES: FieldNames = {"inputs": "input", "truncate_to": "truncate"}


class ConversationWriter:
    """Writes messages into `chat.messages`. It decodes images, so use it in a thread if there are any.

    Args:
        parts: files that were cut out of the body.

    Raises:
        InvalidRequestError: an image is not base64. The error names it.
    """

    def __init__(self, chat: generation_pb2.ChatRequest, parts: FileParts) -> None:
        self._chat = chat
        self._parts = parts
        #: Name and id of each call that no message has answered yet.
        self._open_calls: list[tuple[str, str]] = []
        #: The files, each with its item in `chat`.
        self.files: list[MediaFile] = []
        #: The contract's path of a field -> the client's.
        self.names: dict[str, str] = {}

    def write(self, message: OllamaMessage, path: str) -> None:
        """Write a message. `path` is its own, e.g. `messages[3]`."""
        turn = self.write_turn(message.role, message.content, message.images, path)
        if message.thinking:
            turn.reasoning = message.thinking
            self.names[f"{self._path}.reasoning"] = f"{path}.thinking"
        for index, call in enumerate(message.tool_calls or ()):
            written = turn.tool_calls.add(
                id=call.id or f"call_{len(self._chat.messages) - 1}_{index}",
                name=call.function.name,
                arguments=self._parts.json_text(call.function.arguments or {}),
            )
            self._open_calls.append((written.name, written.id))
            below = f"{self._path}.tool_calls[{index}]"
            self.names |= {f"{below}.{name}": f"{path}.tool_calls[{index}].function.{name}" for name in ("name", "arguments")}
        if message.tool_name:
            turn.name = message.tool_name
        if message.tool_call_id:
            turn.tool_call_id = message.tool_call_id
            self._open_calls = [call for call in self._open_calls if call[1] != message.tool_call_id]
        elif message.role == "tool":
            self._answer(turn)

    def write_turn(self, role: str, text: str | None, images: Sequence[str] | None, path: str) -> generation_pb2.ChatMessage:
        """Write a turn, its images first, as Ollama puts them."""
        turn = self._chat.messages.add(role=role)
        self.names[self._path] = path
        prefix = f"{path}." if path.startswith("messages") else ""
        for index, image in enumerate(images or ()):
            field = f"{prefix}images[{index}]"
            item = turn.content.add().media
            item.modality = common_pb2.MODALITY_IMAGE
            self.names[f"{self._path}.content[{index}].media"] = field
            self.files.append(inline_file(item, image, self._parts, field))
        if text or not images:
            turn.content.add(text=text or "")
        return turn

    @property
    def _path(self) -> str:
        """The contract's path of the last turn."""
        return f"messages[{len(self._chat.messages) - 1}]"

    def _answer(self, turn: generation_pb2.ChatMessage) -> None:
        """Let a tool's message answer the first open call of its tool. One without a call, as of a cut history, stays as it is."""
        found = next((call for call in self._open_calls if turn.name in ("", call[0])), None)
        if found is not None:
            self._open_calls.remove(found)
            turn.name, turn.tool_call_id = found


def chat_request(body: ChatRequest, model: str, parts: FileParts) -> ConvertedChat:
    """A conversation as the contract's request, its files, and the client's names of the contract's fields.

    Args:
        model: the name of the model as it is served.
        parts: files that were cut out of the body.

    Raises:
        InvalidRequestError: see ConversationWriter; or a file was cut out of a place that takes none.
    """
    chat = generation_pb2.ChatRequest(
        model=model,
        options=_generation_options(body, parts),
        tools=[tool(given.function, parts) for given in body.tools or ()],
        drop_oldest_messages=body.truncate is not False,
    )
    writer, messages = ConversationWriter(chat, parts), body.messages or []
    for index, message in enumerate(messages):
        writer.write(message, f"messages[{index}]")
    last = messages[-1]
    if last.role == "assistant" and last.content and not last.tool_calls:
        chat.continue_final_message = True
    _write_thinking(chat, body)
    check_all_taken(parts)
    names = {
        f"tools[{number}].{name}": f"tools[{number}].function.{given}"
        for number in range(len(body.tools or ()))
        for name, given in (("name", "name"), ("parameters_json_schema", "parameters"))
    }
    return chat, writer.files, {**_OPTION_NAMES, "continue_final_message": "messages", **names, **writer.names}


def generate_call(body: GenerateRequest, model: str, request_id: str, parts: FileParts) -> tuple[FrontendCall, FieldNames]:
    """A prompt as a call: a conversation of one turn, or with raw or a suffix a completion. See chat_request."""
    mode = output_mode(body.is_stream)
    options = _generation_options(body, parts)
    if body.truncate:
        options.truncate_prompt_tokens = -1
    if body.raw or body.suffix:
        complete = generation_pb2.CompleteRequest(model=model, text=body.prompt or "", options=options, suffix=body.suffix)
        files = []
        for index, image in enumerate(body.images or ()):
            item = complete.media.add(modality=common_pb2.MODALITY_IMAGE)
            files.append(inline_file(item, image, parts, f"images[{index}]"))
        check_all_taken(parts)
        return FrontendCall(complete, request_id, mode, files), {**_OPTION_NAMES, "text": "prompt", "media": "images"}
    chat = generation_pb2.ChatRequest(model=model, options=options)
    writer = ConversationWriter(chat, parts)
    if body.system:
        writer.write_turn("system", body.system, None, "system")
    writer.write_turn("user", body.prompt, body.images, "prompt")
    _write_thinking(chat, body)
    check_all_taken(parts)
    names = {**_OPTION_NAMES, "messages": "prompt", **writer.names}
    return FrontendCall(chat, request_id, mode, writer.files), names


def embed_request(body: EmbedRequest | EmbeddingsRequest, model: str) -> generation_pb2.EmbedRequest:
    """Texts as the contract's request. /api/embed scales vectors to length 1, the older route does not."""
    if isinstance(body, EmbeddingsRequest):
        texts, truncates = [body.prompt], True
    else:
        texts, truncates = texts_of(body), body.truncate is not False
    request = generation_pb2.EmbedRequest(
        model=model,
        inputs=[generation_pb2.EmbedInput(text=text) for text in texts],
        # As many tokens as the model takes.
        truncate_to=0 if truncates else None,
        packed=True,
    )
    if isinstance(body, EmbedRequest):
        request.normalize = True
        if body.dimensions is not None:
            request.dimensions = body.dimensions
    return request


def texts_of(body: EmbedRequest) -> list[str]:
    """The inputs as a list. An empty text is none."""
    return body.input if isinstance(body.input, list) else [body.input] if body.input else []


def check_context(options: OllamaOptions | None, max_model_len: int) -> None:
    """Raise InvalidRequestError if the client counts on a longer context than the model has."""
    asked = options.num_ctx if options is not None else None
    if asked is not None and asked > max_model_len:
        field = "options.num_ctx"
        message = f"{field}: this model's context is {max_model_len} tokens; given: {asked}"
        raise InvalidRequestError(message, field=field, limit=max_model_len, value=asked)


def _generation_options(body: ChatRequest | GenerateRequest, parts: FileParts) -> generation_pb2.GenerationOptions:
    given = body.options or NO_OPTIONS
    constraint = None
    if isinstance(body.format, dict):
        constraint = common_pb2.Constraint(json_schema=parts.json_text(body.format))
    elif body.format:
        constraint = common_pb2.Constraint(json_object=True)
    sampling = common_pb2.SamplingParams(
        max_tokens=given.token_limit,
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        min_p=given.min_p,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        repetition_penalty=given.repeat_penalty,
        seed=None if given.seed == -1 else given.seed,
        logprobs=body.num_logprobs,
    )
    # In Ollama, num_predict may be more than the context leaves.
    return generation_pb2.GenerationOptions(sampling=sampling, stop=given.stop, constraint=constraint, clamp_max_tokens=True)


def _write_thinking(chat: generation_pb2.ChatRequest, body: ChatRequest | GenerateRequest) -> None:
    if body.think is True:
        chat.template_kwargs.CopyFrom(to_struct(_THINKING))
    elif body.think is False:
        chat.reasoning.effort = "none"
    elif body.think is not None:
        chat.reasoning.effort = body.think

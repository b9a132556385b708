"""Converts Messages requests to the contract's ChatRequest. Sets only what the client set.

The two shapes differ: a tool result is a block of a user's message in one and a message of its own in the other, and neighbouring
messages of one role are one turn.
"""

from __future__ import annotations

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.apis.messages.blocks import (
    AssistantTurn,
    Base64ImageSource,
    DocumentBlock,
    ImageBlock,
    Message,
    PlainTextSource,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
)
from triptych_gateway.apis.messages.schema import (
    MessagesRequest,
    PromptFields,
    ThinkingDisabled,
    ThinkingEnabled,
    ToolChoiceNone,
    ToolChoiceTool,
)
from triptych_gateway.apis.messages.signature import thinking_of
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import MediaFile
from triptych_gateway.wire.contract import TOOL_MODES, ConvertedChat, check_all_taken
from triptych_gateway.wire.media import inline_file, set_url

_FIELD_NAMES = {
    "options": "",
    "options.sampling": "",
    "sampling": "",
    "options.stop": "stop_sequences",
    "options.constraint": "output_config.format",
    "options.constraint.json_schema": "output_config.format.schema",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning": "thinking",
    "reasoning.max_tokens": "thinking.budget_tokens",
    "continue_final_message": "messages",
}
_MODES = TOOL_MODES | dict.fromkeys(("any", "tool"), TOOL_MODES["required"])
_ERROR = "Error: "
ChatMessage = generation_pb2.ChatMessage


class ConversationWriter:
    """Writes messages into `chat.messages`. It decodes images, so use it in a thread if there are any.

    Args:
        parts: files that were cut out of the body.

    Raises:
        InvalidRequestError: an image is not base64, or a tool result belongs to no call. The error names the block.
    """

    def __init__(self, chat: generation_pb2.ChatRequest, parts: FileParts) -> None:
        self._chat = chat
        self._parts = parts
        #: id of a tool call -> name of the tool
        self._tool_names: dict[str, str] = {}
        #: The files, each with its item in `chat`.
        self.files: list[MediaFile] = []
        #: The contract's path of a message or an item -> the client's path of the block.
        self.names: dict[str, str] = {}

    def write_system(self, system: str | list[TextBlock], path: str = "system") -> None:
        """Write instructions."""
        turn = self._turn("system", path)
        for text in [system] if isinstance(system, str) else [block.text for block in system]:
            turn.content.add(text=text)

    def write(self, message: Message, path: str) -> None:
        """Write a message. `path` is its own, e.g. `messages[3]`."""
        if isinstance(message, UserTurn):
            self._write_user(message, path)
        elif isinstance(message, AssistantTurn):
            self._write_assistant(message, path)
        else:
            self.write_system(message.content, path)

    def _write_user(self, message: UserTurn, path: str) -> None:
        if isinstance(message.content, str):
            self._turn("user", path).content.add(text=message.content)
            return
        for index, block in enumerate(message.content):
            block_path = f"{path}.content[{index}]"
            if isinstance(block, ToolResultBlock):
                self._write_result(block, block_path)
            else:
                self._write_block(self._turn("user", path), block, block_path)

    def _write_result(self, result: ToolResultBlock, path: str) -> None:
        name = self._tool_names.get(result.tool_use_id)
        if name is None:
            field = f"{path}.tool_use_id"
            raise InvalidRequestError(f"{field}: no earlier message has a tool_use block of this id", field=field)
        turn = self._turn("tool", path)
        turn.tool_call_id, turn.name = result.tool_use_id, name
        if isinstance(result.content, str):
            turn.content.add(text=_ERROR + result.content if result.is_error else result.content)
            return
        if result.is_error:
            turn.content.add(text=_ERROR)
        for index, block in enumerate(result.content or ()):
            self._write_block(turn, block, f"{path}.content[{index}]")

    def _write_assistant(self, message: AssistantTurn, path: str) -> None:
        turn = self._turn("assistant", path)
        if isinstance(message.content, str):
            turn.content.add(text=message.content)
            return
        for block in message.content:
            if isinstance(block, TextBlock):
                turn.content.add(text=block.text)
            elif isinstance(block, ToolUseBlock):
                self._tool_names[block.id] = block.name
                turn.tool_calls.add(id=block.id, name=block.name, arguments=self._parts.json_text(block.input))
            elif isinstance(block, ThinkingBlock):
                turn.reasoning += thinking_of(block.thinking, block.signature)
            # Redacted thinking is left out: another server encrypted it, and nobody here can read it.

    def _write_block(self, turn: ChatMessage, block: TextBlock | ImageBlock | DocumentBlock, path: str) -> None:
        if isinstance(block, TextBlock):
            turn.content.add(text=block.text)
        elif isinstance(block, ImageBlock):
            self._write_image(turn, block, path)
        else:
            self._write_document(turn, block, path)

    def _write_document(self, turn: ChatMessage, document: DocumentBlock, path: str) -> None:
        head = [text for text in (document.title and f"Document: {document.title}", document.context) if text]
        source = document.source
        text = source.data if isinstance(source, PlainTextSource) else source.content
        if isinstance(text, str):
            turn.content.add(text="\n\n".join([*head, text]))
            return
        if head:
            turn.content.add(text="\n\n".join(head))
        for index, block in enumerate(text):
            self._write_block(turn, block, f"{path}.source.content[{index}]")

    def _write_image(self, turn: ChatMessage, image: ImageBlock, path: str) -> None:
        item = turn.content.add().media
        item.modality = common_pb2.MODALITY_IMAGE
        self.names[f"messages[{len(self._chat.messages) - 1}].content[{len(turn.content) - 1}].media"] = path
        source = image.source
        if isinstance(source, Base64ImageSource):
            item.format = source.media_type
            self.files.append(inline_file(item, source.data, self._parts, f"{path}.source.data"))
        else:
            self.files += set_url(item, source.url, self._parts, f"{path}.source.url")

    def _turn(self, role: str, path: str) -> ChatMessage:
        """The last turn if it goes on in this role, or a new one. Each tool result is a turn of its own."""
        turns = self._chat.messages
        if turns and turns[-1].role == role and role != "tool":
            return turns[-1]
        self.names[f"messages[{len(turns)}]"] = path
        return turns.add(role=role)


def chat_request(body: PromptFields, parts: FileParts) -> ConvertedChat:
    """The prompt as a ChatRequest, its files, and the client's names of the contract's fields.

    Args:
        parts: files that were cut out of the body.

    Raises:
        InvalidRequestError: see ConversationWriter; or a file was cut out of a place that takes none.
    """
    chat = generation_pb2.ChatRequest(model=body.model)
    writer = ConversationWriter(chat, parts)
    if body.system is not None:
        writer.write_system(body.system)
    for index, message in enumerate(body.messages):
        writer.write(message, f"messages[{index}]")
    if isinstance(body.messages[-1], AssistantTurn):
        chat.continue_final_message = True
    names = _FIELD_NAMES | writer.names | _write_tools(chat, body, parts) | _write_reasoning(chat, body)
    if body.answer_schema is not None:
        chat.options.constraint.json_schema = parts.json_text(body.answer_schema)
    check_all_taken(parts)
    return chat, writer.files, names


def set_options(chat: generation_pb2.ChatRequest, body: MessagesRequest) -> None:
    """Write the options of generation."""
    chat.options.sampling.MergeFrom(
        common_pb2.SamplingParams(max_tokens=body.max_tokens, temperature=body.temperature, top_p=body.top_p, top_k=body.top_k)
    )
    chat.options.stop.extend(body.stop_sequences or ())
    # Anthropic's clients must send max_tokens, and send large values. There, the context ends the answer.
    chat.options.clamp_max_tokens = True


def _write_tools(chat: generation_pb2.ChatRequest, body: PromptFields, parts: FileParts) -> dict[str, str]:
    names = {}
    for index, tool in enumerate(body.tools or ()):
        # `examples` is JSON schema's own keyword for what Anthropic has beside the schema.
        schema = tool.input_schema if tool.input_examples is None else tool.input_schema | {"examples": tool.input_examples}
        chat.tools.add(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=parts.json_text(schema),
            strict=tool.strict,
        )
        names[f"tools[{index}].parameters_json_schema"] = f"tools[{index}].input_schema"
    choice = body.tool_choice
    if choice is None:
        return names
    chat.tool_choice.mode = _MODES[choice.type]
    if isinstance(choice, ToolChoiceTool):
        chat.tool_choice.allowed_names.append(choice.name)
    if not isinstance(choice, ToolChoiceNone) and choice.disable_parallel_tool_use is not None:
        chat.parallel_tool_calls = not choice.disable_parallel_tool_use
    return names


def _write_reasoning(chat: generation_pb2.ChatRequest, body: PromptFields) -> dict[str, str]:
    effort = body.output_config.effort if body.output_config else None
    if effort is not None:
        chat.reasoning.effort = effort
    if isinstance(body.thinking, ThinkingEnabled):
        chat.reasoning.max_tokens = body.thinking.budget_tokens
    elif isinstance(body.thinking, ThinkingDisabled):
        # The level is about thinking. Without thinking there is nothing left for it to say.
        chat.reasoning.effort = "none"
        return {"reasoning.effort": "thinking"}
    return {"reasoning.effort": "output_config.effort"} | ({"reasoning": "output_config.effort"} if body.thinking is None else {})

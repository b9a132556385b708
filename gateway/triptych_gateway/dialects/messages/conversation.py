"""Writes Anthropic's messages into a ChatRequest.

The two shapes differ: a tool result is a block of a user's message in one and a message of its own in the other, and neighbouring
messages of one role are one turn.
"""

from __future__ import annotations

import pybase64
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.media.data_url import decode_data_url
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES

from triptych_gateway.dialects.messages.signature import thinking_of
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import MediaFile
from triptych_gateway.schemas.messages.blocks import (
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

_ERROR = "Error: "
Turn = generation_pb2.ChatMessage


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

    def _write_block(self, turn: Turn, block: TextBlock | ImageBlock | DocumentBlock, path: str) -> None:
        if isinstance(block, TextBlock):
            turn.content.add(text=block.text)
        elif isinstance(block, ImageBlock):
            self._write_image(turn, block, path)
        else:
            self._write_document(turn, block, path)

    def _write_document(self, turn: Turn, document: DocumentBlock, path: str) -> None:
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

    def _write_image(self, turn: Turn, image: ImageBlock, path: str) -> None:
        item = turn.content.add().media
        item.modality = common_pb2.MODALITY_IMAGE
        self.names[f"messages[{len(self._chat.messages) - 1}].content[{len(turn.content) - 1}].media"] = path
        source = image.source
        if isinstance(source, Base64ImageSource):
            item.format = source.media_type
            self.files.append(MediaFile(item, self._file(source.data, f"{path}.source.data")))
        elif source.url[:5].lower() == "data:":
            self.files.append(MediaFile(item, _from_data_url(source.url, f"{path}.source.url")))
        else:
            item.url = source.url

    def _file(self, data: str, field: str) -> bytes:
        try:
            file = self._parts.take(data)
            return file if file is not None else pybase64.b64decode(data, validate=True)
        except ValueError:
            raise InvalidRequestError(f"{field}: must be a string in base64", field=field) from None

    def _turn(self, role: str, path: str) -> Turn:
        """The last turn if it goes on in this role, or a new one. Each tool result is a turn of its own."""
        turns = self._chat.messages
        if turns and turns[-1].role == role and role != "tool":
            return turns[-1]
        self.names[f"messages[{len(turns)}]"] = path
        return turns.add(role=role)


def _from_data_url(url: str, field: str) -> bytes:
    try:
        return decode_data_url(url, MAX_MESSAGE_BYTES)
    except ValueError as error:
        raise InvalidRequestError(f"{field}: {error}", field=field) from error

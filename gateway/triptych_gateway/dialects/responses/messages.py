"""Converts items to the messages of the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triptych.errors import InvalidRequestError
from triptych.v1 import generation_pb2

from triptych_gateway.dialects.fields import in_client_terms
from triptych_gateway.dialects.media import media_item
from triptych_gateway.dialects.responses.opaque import unseal
from triptych_gateway.file_parts import FileParts
from triptych_gateway.schemas.conversation import AudioPart, ImagePart, ImageUrl, MediaUrl, VideoPart
from triptych_gateway.schemas.responses.content import (
    InputAudioPart,
    InputFile,
    InputImage,
    InputText,
    InputVideo,
    OutputText,
    Refusal,
)
from triptych_gateway.schemas.responses.items import (
    AnyItem,
    CompactionItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    ItemReference,
    MessageItem,
    ReasoningItem,
)

AnyPart = InputText | InputImage | InputVideo | InputAudioPart | InputFile | OutputText | Refusal
#: The client's name for all items of earlier responses.
_EARLIER = "previous_response_id"
_SUMMARY = "The conversation before this point, in short:\n"


@dataclass
class Conversation:
    """Messages of the contract, made from items.

    Successive items of the assistant (reasoning, a message, calls) become one message, which chat templates know as one turn.

    Args:
        parts: files that were cut out of the body.
        options: processor options of the request, for all media.
    """

    parts: FileParts
    options: Mapping[str, Any] | None = None
    messages: list[generation_pb2.ChatMessage] = field(default_factory=list)
    #: (index of the message, index of the part) -> content of the file
    files: dict[tuple[int, int], bytes] = field(default_factory=dict)
    #: The contract's path -> the client's path.
    names: dict[str, str] = field(default_factory=dict)
    _system: list[str] = field(default_factory=list)
    _turn: generation_pb2.ChatMessage | None = None

    def instruct(self, text: str) -> None:
        """Add to the system message at the start."""
        self._system.append(text)

    def add_all(self, items: Iterable[AnyItem], path: str | None) -> None:
        """Add items.

        Args:
            path: the client's name of their list; None for the items of earlier responses.
        """
        for number, item in enumerate(items):
            self._add(item, f"{path}[{number}]" if path else _EARLIER)

    def finish(self) -> list[generation_pb2.ChatMessage]:
        """All messages. `files` and `names` are complete then."""
        if self._system:
            self.messages.insert(0, _message("system", "\n\n".join(self._system)))
            self.files = {(number + 1, index): content for (number, index), content in self.files.items()}
            self.names = {_moved(path): name for path, name in self.names.items()}
        return self.messages

    def _add(self, item: AnyItem, path: str) -> None:
        if isinstance(item, MessageItem) and item.role == "assistant":
            turn = self._assistant(path, is_new=self._turn is not None and bool(self._turn.content or self._turn.tool_calls))
            self._fill(turn, item.content, f"{path}.content")
        elif isinstance(item, MessageItem):
            self._fill(self._begin(item.role, path), item.content, f"{path}.content")
        elif isinstance(item, FunctionCallItem):
            call = generation_pb2.ToolCall(id=item.call_id, name=item.name, arguments=item.arguments)
            turn = self._assistant(path)
            self.names[f"messages[{len(self.messages) - 1}].tool_calls[{len(turn.tool_calls)}]"] = path
            turn.tool_calls.append(call)
        elif isinstance(item, FunctionCallOutputItem):
            turn = self._begin("tool", path)
            turn.tool_call_id = item.call_id
            self.names[f"messages[{len(self.messages) - 1}].tool_call_id"] = f"{path}.call_id"
            self._fill(turn, item.output, f"{path}.output")
        elif isinstance(item, ReasoningItem):
            turn = self._assistant(path, is_new=self._turn is not None and bool(self._turn.content or self._turn.tool_calls))
            self.names[f"messages[{len(self.messages) - 1}].reasoning"] = path
            turn.reasoning += _reasoning(item, path)
        elif isinstance(item, CompactionItem):
            self.instruct(_SUMMARY + unseal(item.encrypted_content, f"{path}.encrypted_content"))
        elif isinstance(item, ItemReference):
            raise InvalidRequestError(f"{path}: a reference to a reference", field=path)

    def _begin(self, role: str, path: str) -> generation_pb2.ChatMessage:
        self._turn = None
        self.names[f"messages[{len(self.messages)}]"] = path
        message = generation_pb2.ChatMessage(role=role)
        self.messages.append(message)
        return message

    def _assistant(self, path: str, is_new: bool = False) -> generation_pb2.ChatMessage:
        """The assistant's current turn, or a new one."""
        if self._turn is None or is_new:
            self._turn = self._begin("assistant", path)
        return self._turn

    def _fill(self, message: generation_pb2.ChatMessage, content: str | Sequence[AnyPart], path: str) -> None:
        if isinstance(content, str):
            message.content.append(generation_pb2.ContentPart(text=content))
            return
        number = len(self.messages) - 1
        for position, part in enumerate(content):
            if isinstance(part, (InputText, OutputText)):
                message.content.append(generation_pb2.ContentPart(text=part.text))
            elif isinstance(part, Refusal):
                message.content.append(generation_pb2.ContentPart(text=part.refusal))
            else:
                self._add_media(message, part, number, f"{path}[{position}]")

    def _add_media(self, message: generation_pb2.ChatMessage, part: AnyPart, number: int, path: str) -> None:
        kind, media = _as_chat_part(part)
        try:
            item, content = media_item(media, path, self.parts, self.options)
        except InvalidRequestError as error:
            # Here the URL is the field itself, not an object with a URL.
            raise in_client_terms(error, {f"{path}.{kind}.url": f"{path}.{kind}"}) from error
        index = len(message.content)
        is_own = not path.startswith(_EARLIER)
        media_path = f"messages[{number}].content[{index}].media"
        self.names[media_path] = f"{path}.{kind}" if is_own else _EARLIER
        self.names[f"{media_path}.detail"] = f"{path}.detail" if is_own else _EARLIER
        message.content.append(generation_pb2.ContentPart(media=item))
        if content is not None:
            self.files[number, index] = content


def _as_chat_part(part: AnyPart) -> tuple[str, ImagePart | AudioPart | VideoPart]:
    if isinstance(part, InputImage):
        return "image_url", ImagePart(type="image_url", image_url=ImageUrl(url=part.image_url or "", detail=part.detail))
    if isinstance(part, InputVideo):
        return "video_url", VideoPart(type="video_url", video_url=MediaUrl(url=part.video_url))
    if isinstance(part, InputAudioPart):
        return "input_audio", AudioPart(type="input_audio", input_audio=part.input_audio)
    raise InvalidRequestError(f"parts of type {part.type!r} are not served")


def _reasoning(item: ReasoningItem, path: str) -> str:
    if item.content:
        return "".join(part.text for part in item.content)
    if item.encrypted_content is not None:
        return unseal(item.encrypted_content, f"{path}.encrypted_content")
    return "\n\n".join(part.text for part in item.summary)


def _message(role: str, text: str) -> generation_pb2.ChatMessage:
    return generation_pb2.ChatMessage(role=role, content=[generation_pb2.ContentPart(text=text)])


def _moved(path: str) -> str:
    """The path of a message one place further on."""
    number, _, rest = path.removeprefix("messages[").partition("]")
    return f"messages[{int(number) + 1}]{rest}"


def has_media(items: Iterable[AnyItem]) -> bool:
    """Whether an item has a part that is not text."""
    for item in items:
        content = item.content if isinstance(item, MessageItem) else item.output if isinstance(item, FunctionCallOutputItem) else ""
        if not isinstance(content, str) and any(not isinstance(part, (InputText, OutputText, Refusal)) for part in content):
            return True
    return False

"""Writes items into the messages of the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.apis.file_inputs import FileInputs
from triptych_gateway.apis.responses.items import (
    AnyItem,
    CompactionItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudioPart,
    InputFile,
    InputImage,
    InputText,
    InputVideo,
    ItemReference,
    MessageItem,
    OutputText,
    ReasoningItem,
    Refusal,
)
from triptych_gateway.apis.responses.opaque import unseal
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import MediaFile
from triptych_gateway.wire.documents import document_text
from triptych_gateway.wire.media import inline_file, set_options, set_url

AnyPart = InputText | InputImage | InputVideo | InputAudioPart | InputFile | OutputText | Refusal
ChatMessage = generation_pb2.ChatMessage
#: The client's name for all items of earlier responses.
_EARLIER = "previous_response_id"
_SUMMARY = "The conversation before this point, in short:\n"


class ConversationWriter:
    """Writes items into `chat.messages`. It decodes files, so use it in a thread if there are any.

    Successive items of the assistant (reasoning, a message, calls) become one message, which chat templates know as one turn.

    Args:
        parts: files that were cut out of the body.
        options: processor options of the request, for all media.
    """

    def __init__(self, chat: generation_pb2.ChatRequest, parts: FileParts, options: Mapping[str, Any] | None) -> None:
        self._messages, self._parts, self._options = chat.messages, parts, options
        #: The files, each with its item in `chat`.
        self.files: list[MediaFile] = []
        #: The contract's path -> the client's path.
        self.names: dict[str, str] = {}
        self._system: list[str] = []
        #: The assistant's message that further items belong to.
        self._turn: ChatMessage | None = None

    def write(self, instructions: str | None, history: Sequence[AnyItem], items: Sequence[AnyItem]) -> None:
        """Write instructions and compacted conversations as one system message, then the items.

        Args:
            history: the items of earlier responses.
            items: the request's own.
        """
        is_compacted = any(isinstance(item, CompactionItem) for item in (*history, *items))
        system = self._messages.add(role="system") if instructions or is_compacted else None
        if instructions:
            self._system.append(instructions)
        for item in history:
            self._add(item, _EARLIER)
        for number, item in enumerate(items):
            self._add(item, f"input[{number}]")
        if system is not None:
            system.content.add(text="\n\n".join(self._system))

    @property
    def _path(self) -> str:
        return f"messages[{len(self._messages) - 1}]"

    def _add(self, item: AnyItem, path: str) -> None:
        if isinstance(item, MessageItem) and item.role == "assistant":
            self._fill(self._assistant(path, begins=True), item.content, f"{path}.content")
        elif isinstance(item, MessageItem):
            self._fill(self._begin(item.role, path), item.content, f"{path}.content")
        elif isinstance(item, FunctionCallItem):
            turn = self._assistant(path)
            self.names[f"{self._path}.tool_calls[{len(turn.tool_calls)}]"] = path
            turn.tool_calls.add(id=item.call_id, name=item.name, arguments=item.arguments)
        elif isinstance(item, FunctionCallOutputItem):
            turn = self._begin("tool", path)
            turn.tool_call_id = item.call_id
            self.names[f"{self._path}.tool_call_id"] = f"{path}.call_id"
            self._fill(turn, item.output, f"{path}.output")
        elif isinstance(item, ReasoningItem):
            turn = self._assistant(path, begins=True)
            self.names[f"{self._path}.reasoning"] = path
            turn.reasoning += _reasoning(item, path)
        elif isinstance(item, CompactionItem):
            self._system.append(_SUMMARY + unseal(item.encrypted_content, f"{path}.encrypted_content"))
        elif isinstance(item, ItemReference):
            raise InvalidRequestError(f"{path}: a reference to a reference", field=path)

    def _begin(self, role: str, path: str) -> ChatMessage:
        self._turn = None
        message = self._messages.add(role=role)
        self.names[self._path] = path
        return message

    def _assistant(self, path: str, *, begins: bool = False) -> ChatMessage:
        """The assistant's current message, or a new one. `begins`: the item does not follow text or calls in a message."""
        if self._turn is None or (begins and (self._turn.content or self._turn.tool_calls)):
            self._turn = self._begin("assistant", path)
        return self._turn

    def _fill(self, message: ChatMessage, content: str | Sequence[AnyPart], path: str) -> None:
        if isinstance(content, str):
            message.content.add(text=content)
            return
        for position, part in enumerate(content):
            if isinstance(part, (InputText, OutputText)):
                message.content.add(text=part.text)
            elif isinstance(part, Refusal):
                message.content.add(text=part.refusal)
            elif isinstance(part, InputFile):
                message.content.add(text=document_text(part, self._parts, f"{path}[{position}]"))
            else:
                self._add_media(message, part, f"{path}[{position}]")

    def _add_media(self, message: ChatMessage, part: InputImage | InputVideo | InputAudioPart, path: str) -> None:
        item = message.content.add().media
        set_options(item, self._options)
        if isinstance(part, InputImage):
            kind, item.modality = "image_url" if part.file_id is None else "file_id", common_pb2.MODALITY_IMAGE
            if part.detail is not None:
                item.detail = part.detail
            if part.file_id is not None:
                self.files.append(MediaFile(item, self._parts.stored[part.file_id]))
            else:
                self.files += set_url(item, part.image_url or "", self._parts, f"{path}.image_url")
        elif isinstance(part, InputVideo):
            kind, item.modality = "video_url", common_pb2.MODALITY_VIDEO
            self.files += set_url(item, part.video_url, self._parts, f"{path}.video_url")
        else:
            kind, item.modality, item.format = "input_audio", common_pb2.MODALITY_AUDIO, part.input_audio.format
            self.files.append(inline_file(item, part.input_audio.data, self._parts, f"{path}.input_audio.data"))
        is_own = not path.startswith(_EARLIER)
        media_path = f"{self._path}.content[{len(message.content) - 1}].media"
        self.names[media_path] = f"{path}.{kind}" if is_own else _EARLIER
        self.names[f"{media_path}.detail"] = f"{path}.detail" if is_own else _EARLIER


def _reasoning(item: ReasoningItem, path: str) -> str:
    if item.content:
        return "".join(part.text for part in item.content)
    if item.encrypted_content is not None:
        return unseal(item.encrypted_content, f"{path}.encrypted_content")
    return "\n\n".join(part.text for part in item.summary)


def file_inputs(history: Sequence[AnyItem], items: Sequence[AnyItem]) -> FileInputs:
    """The files of a conversation that have to be read first.

    Args:
        history: the items of earlier responses.
        items: the request's own.
    """
    inputs = FileInputs()
    own = ((item, f"input[{number}]") for number, item in enumerate(items))
    for item, path in (*((item, _EARLIER) for item in history), *own):
        name = "content" if isinstance(item, MessageItem) else "output" if isinstance(item, FunctionCallOutputItem) else ""
        content = getattr(item, name, "")
        for position, part in enumerate(content if not isinstance(content, str) else ()):
            place = path if path == _EARLIER else f"{path}.{name}[{position}]"
            if isinstance(part, InputFile):
                inputs.documents.append((part, place))
            elif isinstance(part, InputImage) and part.file_id is not None:
                inputs.media.append((part.file_id, place if path == _EARLIER else f"{place}.file_id"))
    return inputs


def has_media(items: Iterable[AnyItem]) -> bool:
    """Whether an item has a part that is not text."""
    for item in items:
        content = item.content if isinstance(item, MessageItem) else item.output if isinstance(item, FunctionCallOutputItem) else ""
        if not isinstance(content, str) and any(not isinstance(part, (InputText, OutputText, Refusal)) for part in content):
            return True
    return False

"""Writes what the REST APIs share into the contract's messages. Sets only what the client set: defaults are the contract's."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.rpc.structs import to_struct

from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import MediaFile
from triptych_gateway.wire.conversation import ChatPrompt, FilePart, MediaPart, Message, TextPart, has_media
from triptych_gateway.wire.documents import document_text
from triptych_gateway.wire.field_names import FieldNames
from triptych_gateway.wire.generation import GenerationRequest, ResponseFormat, StructuredOutputs
from triptych_gateway.wire.media import write_media
from triptych_gateway.wire.tools import FunctionDefinition

#: A request, its files, and the client's names of its fields.
ConvertedChat = tuple[generation_pb2.ChatRequest, list[MediaFile], FieldNames]
TOOL_MODES = {
    "auto": generation_pb2.ToolChoice.MODE_AUTO,
    "none": generation_pb2.ToolChoice.MODE_NONE,
    "required": generation_pb2.ToolChoice.MODE_REQUIRED,
}
#: Fields with the same name in the REST request and in SamplingParams.
_SAME_NAMED = (
    "min_tokens",
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "ignore_eos",
    "seed",
    "logit_bias",
    "allowed_token_ids",
    "stop_token_ids",
    "prompt_logprobs",
)


def write_prompt(
    into: generation_pb2.ChatRequest | generation_pb2.ChatMessages, body: ChatPrompt, messages: Sequence[Message], parts: FileParts
) -> list[MediaFile]:
    """Write a conversation and the options of its template. Returns its files, each with its item.

    This decodes the files, so call it in a thread if there are any.

    Args:
        parts: files that were cut out of the body.

    Raises:
        InvalidRequestError: a file cannot be decoded or is in a place that takes none, or options of media without media.
    """
    if body.mm_processor_kwargs and not has_media(messages):
        field = "mm_processor_kwargs"
        raise InvalidRequestError(f"{field}: only allowed with media; there is none in the messages", field=field)
    if body.chat_template_kwargs is not None:
        into.template_kwargs.CopyFrom(to_struct(body.chat_template_kwargs))
    if body.add_generation_prompt is not None:
        into.add_generation_prompt = body.add_generation_prompt
    if body.continue_final_message is not None:
        into.continue_final_message = body.continue_final_message
    files: list[MediaFile] = []
    for number, message in enumerate(messages):
        turn = into.messages.add(
            role=message.role, name=message.name, reasoning=message.thoughts, tool_call_id=message.tool_call_id
        )
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part, MediaPart):
                item = turn.content.add().media
                files += write_media(item, part, f"messages[{number}].content[{index}]", parts, body.mm_processor_kwargs)
            elif isinstance(part, FilePart):
                turn.content.add(text=document_text(part.file, parts, f"messages[{number}].content[{index}].file"))
            else:
                turn.content.add(text=part.text if isinstance(part, TextPart) else part.refusal)
        if isinstance(message.content, str) and (message.content or not message.refusal):
            turn.content.add(text=message.content)
        if message.refusal:
            turn.content.add(text=message.refusal)
        for call in message.tool_calls or ():
            turn.tool_calls.add(id=call.id, name=call.function.name, arguments=call.function.arguments)
    check_all_taken(parts)
    return files


def put_files(files: list[MediaFile]) -> None:
    """Put files into the items of their request. Empties the list: the request is then the only one that keeps them."""
    while files:
        file = files.pop()
        file.item.data = file.content


def check_all_taken(parts: FileParts) -> None:
    """Raise InvalidRequestError if a file of the body was not used."""
    if parts:
        raise InvalidRequestError("the body has the address of a file in a place that takes none")


def tool(function: FunctionDefinition, parts: FileParts) -> generation_pb2.Tool:
    """A function that the model may call."""
    schema = None if function.parameters is None else parts.json_text(function.parameters)
    return generation_pb2.Tool(
        name=function.name, description=function.description, parameters_json_schema=schema, strict=function.strict
    )


def generation_options(request: GenerationRequest, parts: FileParts) -> generation_pb2.GenerationOptions:
    """The generation options of a request."""
    sampling = common_pb2.SamplingParams(
        max_tokens=request.token_limit,
        logprobs=request.num_logprobs,
        # vLLM's clients send -1 to disable top-k.
        top_k=None if request.top_k is None else max(request.top_k, 0),
        **{name: getattr(request, name) for name in _SAME_NAMED},
    )
    beam_search = None
    if request.use_beam_search:
        beam_search = generation_pb2.BeamSearch(width=request.best_of, length_penalty=request.length_penalty)
    return generation_pb2.GenerationOptions(
        sampling=sampling,
        stop=request.stop,
        include_stop_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        n=request.n,
        # The usage so far is counted by them.
        return_token_ids=request.has_continuous_usage or request.return_token_ids,
        priority=request.priority,
        cache_salt=request.cache_salt,
        affinity_key=request.prompt_cache_key,
        constraint=_constraint(request.response_format, request.structured_outputs, parts),
        bad_words=request.bad_words,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        # Equal to n it asks for nothing. With beam search it is the number of beams.
        best_of=request.best_of if request.best_of != request.num_choices and not request.use_beam_search else None,
        beam_search=beam_search,
    )


def output_mode(is_stream: bool | None) -> generation_pb2.OutputMode:
    """The output mode. Without streaming, the frontend sends each choice once, when it has ended."""
    return generation_pb2.OUTPUT_MODE_DELTA if is_stream else generation_pb2.OUTPUT_MODE_FINAL


def _constraint(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None, parts: FileParts
) -> common_pb2.Constraint | None:
    """The constraint on the output; None if there is none. At most one of the two constrains it."""
    if structured is not None:
        return _structured(structured, parts)
    if response_format is None or response_format.type == "text":
        return None
    if response_format.json_schema is None:
        return common_pb2.Constraint(json_object=True)
    return common_pb2.Constraint(json_schema=parts.json_text(response_format.json_schema.json_schema))


def _structured(given: StructuredOutputs, parts: FileParts) -> common_pb2.Constraint:
    if given.json_ is not None:
        return common_pb2.Constraint(json_schema=given.json_ if isinstance(given.json_, str) else parts.json_text(given.json_))
    if given.choice is not None:
        return common_pb2.Constraint(choice=common_pb2.StringList(values=given.choice))
    return common_pb2.Constraint(regex=given.regex, grammar=given.grammar, json_object=given.json_object or None)

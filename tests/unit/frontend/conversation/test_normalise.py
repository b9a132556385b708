"""What a template would leave out, or refuse, is put where it shows it."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders.tokenizer import small_model_dir
from triptych.v1 import common_pb2, generation_pb2
from triptych_frontend.conversation.formats.table import CallIds
from triptych_frontend.conversation.normalise import TemplateTraits, fitted
from triptych_frontend.conversation.turns import ChatTurn
from triptych_frontend.media.item import MediaPart
from triptych_frontend.prompt.chat_template import ChatTemplate
from triptych_frontend.tokens.tokenizer import Tokenizer

#: As Qwen3's: other roles than these print nothing.
KNOWN_ROLES = (
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
#: As many: only the first turn may be the system's.
ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}{% endif %}"
    "{% if m.role == 'developer' %}{{ raise_exception('unknown role') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
#: As Gemma 2's.
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('System role not supported') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
#: As gpt-oss': the first turn may be the developer's or the system's.
DEVELOPER = (
    "{% if messages[0].role in ['system', 'developer'] %}[developer]{{ messages[0].content }}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role in ['user', 'assistant'] %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
ALL = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def turns(*given: tuple[str, str]) -> list[ChatTurn]:
    return [ChatTurn(role, (text,)) for role, text in given]


def rendered(source: str, *given: tuple[str, str]) -> str:
    template = ChatTemplate(Tokenizer.load(small_model_dir()), source)
    return template.render(turns(*given), {}, add_generation_prompt=True, continue_final_message=False).text


CONVERSATION = (("developer", "Be kind."), ("user", "Hi"), ("assistant", "Ho"), ("system", "Be brief."), ("user", "Go"))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (ALL, "[developer]Be kind.[user]Hi[assistant]Ho[system]Be brief.[user]Go"),
        (KNOWN_ROLES, "[system]Be kind.[user]Hi[assistant]Ho[system]Be brief.[user]Go"),
        (ONE_SYSTEM, "[system]Be kind.\n\nBe brief.[user]Hi[assistant]Ho[user]Go"),
        (NO_SYSTEM, "[user]Be kind.\n\nBe brief.\n\nHi[assistant]Ho[user]Go"),
        (DEVELOPER, "[developer]Be kind.\n\nBe brief.[user]Hi[assistant]Ho[user]Go"),
    ],
)
def test_no_instruction_is_lost(source: str, text: str) -> None:
    assert rendered(source, *CONVERSATION) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (ALL, "[system]A[developer]B[user]Hi"),
        (KNOWN_ROLES, "[system]A[system]B[user]Hi"),
        (ONE_SYSTEM, "[system]A\n\nB[user]Hi"),
        (NO_SYSTEM, "[user]A\n\nB\n\nHi"),
        (DEVELOPER, "[developer]A\n\nB[user]Hi"),
    ],
)
def test_instructions_of_two_roles_are_both_shown(source: str, text: str) -> None:
    assert rendered(source, ("system", "A"), ("developer", "B"), ("user", "Hi")) == text


def test_instructions_that_come_later_begin_the_conversation_if_there_are_no_others() -> None:
    given = (("user", "Hi"), ("assistant", "Ho"), ("system", "Be brief."), ("user", "Go"))
    assert rendered(ONE_SYSTEM, *given) == "[system]Be brief.[user]Hi[assistant]Ho[user]Go"
    assert rendered(NO_SYSTEM, ("system", "A"), ("assistant", "Ho")) == "[user]A[assistant]Ho"


def test_media_stay_in_their_order() -> None:
    picture = MediaPart(common_pb2.MODALITY_IMAGE)
    given = [ChatTurn("user", (picture, "Hi")), ChatTurn("system", ("See", picture)), ChatTurn("user", ("Go",))]
    traits = TemplateTraits(later_system=False)
    assert fitted(given, traits) == given
    merged = fitted([ChatTurn("system", ("A",)), ChatTurn("system", (picture,)), *given[:1]], TemplateTraits(second_system=False))
    assert merged[0].parts == ("A", picture)


ARGUMENTS_AS_TEXT = (
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}"
    "{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
ARGUMENTS_AS_OBJECTS = ARGUMENTS_AS_TEXT.replace("c.function.arguments }}", "(c.function.arguments | tojson) }}")


@pytest.mark.parametrize("source", [ARGUMENTS_AS_TEXT, ARGUMENTS_AS_OBJECTS])
def test_arguments_of_calls_have_the_form_that_the_template_takes(source: str) -> None:
    template = ChatTemplate(Tokenizer.load(small_model_dir()), source)
    call = generation_pb2.ToolCall(id="c1", name="f", arguments='{"a": 1}')
    given = [
        ChatTurn("user", ("Hi",)),
        ChatTurn("assistant", ("",), tool_calls=(call,)),
        ChatTurn("tool", ("R",), tool_call_id="c1"),
    ]
    text = template.render(given, {}, add_generation_prompt=True, continue_final_message=False).text
    assert text == 'Hif{"a": 1}R'


@pytest.mark.parametrize(
    ("kind", "given", "written"),
    [
        (CallIds.ANY, "call_0123", "call_0123"),
        (CallIds.SHORT, "call_0123", "000000000"),
        (CallIds.SHORT, "abcDEF123", "abcDEF123"),
        (CallIds.FUNCTIONS, "call_0123", "functions.f:0"),
        (CallIds.FUNCTIONS, "functions.f:7", "functions.f:7"),
    ],
)
def test_ids_of_calls_are_those_that_the_template_takes(kind: CallIds, given: str, written: str) -> None:
    call: Any = generation_pb2.ToolCall(id=given, name="f", arguments="{}")
    asked, answered = fitted(
        [ChatTurn("assistant", ("",), tool_calls=(call,)), ChatTurn("tool", ("R",), tool_call_id=given)],
        TemplateTraits(call_ids=kind),
    )
    assert [one.id for one in asked.tool_calls] == [written]
    assert answered.tool_call_id == written

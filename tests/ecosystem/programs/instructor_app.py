"""Instructor against an OpenAI-compatible server. Arguments: base URL (with /v1), model."""

import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel

url, model = sys.argv[1:]


class Person(BaseModel):
    name: str
    age: int
    mood: Literal["good", "bad"]


client = OpenAI(base_url=url, api_key="none")
messages = [{"role": "user", "content": "Ada is 36 years old and in a good mood."}]
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    wrapped = instructor.from_openai(client, mode=mode)
    person = wrapped.chat.completions.create(
        model=model, messages=messages, response_model=Person, max_retries=0, temperature=0, max_tokens=200
    )
    assert isinstance(person, Person), person
partial = instructor.from_openai(client, mode=instructor.Mode.TOOLS).chat.completions.create_partial(
    model=model, messages=messages, response_model=Person, temperature=0, max_tokens=200
)
assert list(partial)[-1].mood in ("good", "bad")
print("ok")

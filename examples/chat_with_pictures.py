"""A chat about pictures: the answers stream, and each question is sent with the turns before it.

    make serve
    python examples/chat_with_pictures.py examples/three-shapes.png

Ask "Where is the triangle?", then "Which shape is blue?". The default model knows shapes, colours and digits, in one picture.
Others take several pictures.
"""

import base64
import mimetypes
import os
import sys
from pathlib import Path

from openai import OpenAI

MODEL = os.environ.get("MODEL", "smollm2-135m-vision")
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)


def picture(path: str) -> dict:
    """The part of a message that is a picture."""
    data = base64.b64encode(Path(path).read_bytes()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{mimetypes.guess_type(path)[0]};base64,{data}"}}


# The pictures come before the first question. The server encodes them once, however many questions follow.
parts = [picture(path) for path in sys.argv[1:] or [str(Path(__file__).with_name("three-shapes.png"))]]
messages = []
print("Ask, one question a line. Ctrl-D ends the chat.", file=sys.stderr)
for line in sys.stdin:
    messages.append({"role": "user", "content": [*parts, {"type": "text", "text": line.strip()}]})
    parts = []
    answer = ""
    stream = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_completion_tokens=1000, stream=True)
    for chunk in stream:
        if chunk.choices:
            piece = chunk.choices[0].delta.content or ""
            print(piece, end="", flush=True)
            answer += piece
    print()
    messages.append({"role": "assistant", "content": answer})

"""A voice note as text.

None of the built-in models takes audio. Serve one that does, such as Qwen2-Audio (8 billion parameters, about 20 GB of memory):

    make serve MODEL=Qwen/Qwen2-Audio-7B-Instruct
    python examples/transcribe.py examples/voice-note.ogg

docs/models.md lists the families. They were tested with random weights; real weights of one have not run.
"""

import os
import sys
from pathlib import Path

from openai import OpenAI

MODEL = os.environ.get("MODEL", "Qwen/Qwen2-Audio-7B-Instruct")
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)

note = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("voice-note.ogg")
# Language and prompt are hints, and can be left out.
transcript = client.audio.transcriptions.create(model=MODEL, file=note, language="en", prompt="A note about repairs.")
print(transcript.text)

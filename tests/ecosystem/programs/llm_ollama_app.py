"""The command line tool `llm` with its plugin for Ollama. Arguments: URL of a scripted server, URL of a real one that has `embed`
too, model.

The scripted server answers with what the last text of the conversation tells it: {"mock": {...}}.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

scripted, served, model = sys.argv[1:]
SHAPES = Path(__file__).resolve().parents[3] / "examples" / "three-shapes.png"


def llm(*words: str, url: str = served) -> str:
    """What the tool prints."""
    environment = os.environ | {"OLLAMA_HOST": url, "LLM_USER_PATH": folder}
    command = [sys.executable, "-m", "llm", *words]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr[-2000:])
    return done.stdout.strip()


with tempfile.TemporaryDirectory() as folder:
    listed = llm("ollama", "models")
    assert model in listed, listed
    assert "embed" in listed, listed
    options = ("-m", f"ollama/{model}", "-o", "temperature", "0", "-o", "num_predict", "64")
    answer = llm(*options, "-s", "Be brief.", "What is the capital of France?")
    assert "Paris" in answer, answer
    assert llm(*options, "--no-stream", "-s", "Be brief.", "What is the capital of France?") == answer
    assert llm("-c", "What did I ask about?"), "the conversation goes on"
    assert llm(*options, "-a", str(SHAPES), "Where is the triangle?")
    shape = llm(*options, "--schema", "name, is_capital bool", "Name the capital of France.")
    assert set(json.loads(shape)) == {"name", "is_capital"}, shape

    call = {"id": "call_1", "name": "llm_version", "arguments": "{}"}
    asked = json.dumps({"mock": {"toolCalls": [call], "text": "I look."}})
    called = llm("-m", f"ollama/{model}", "-T", "llm_version", "--td", asked, url=scripted)
    assert called, "the tool's answer goes back to the model"

    vector = json.loads(llm("embed", "-m", "ollama/embed", "-c", "A cat."))
    assert len(vector) > 100, len(vector)
print("ok")

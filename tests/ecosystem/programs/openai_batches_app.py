"""Files, uploads and batches with the openai package. Arguments: base URL (with /v1), model, a picture."""

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import openai
from openai import OpenAI
from openai.types import Batch

url, model, picture = sys.argv[1:]
client = OpenAI(base_url=url, api_key="none", max_retries=0)
OPTIONS = {"model": model, "temperature": 0, "max_completion_tokens": 16}


def line(custom_id: str, content: Any, **more: Any) -> str:
    body = {**OPTIONS, "messages": [{"role": "user", "content": content}], **more}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


def batch_of(*lines: str) -> Batch:
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")


def ended(batch: Batch) -> Batch:
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    return batch


def lines_of(file_id: str | None) -> dict[str, dict[str, Any]]:
    assert file_id is not None
    return {entry["custom_id"]: entry for entry in map(json.loads, client.files.content(file_id).text.splitlines())}


batch = ended(batch_of(line("a", "What is the capital of France?"), line("b", "Hello"), line("c", "Hello", colour="red")))
assert batch.status == "completed", batch
assert batch.request_counts is not None
assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (3, 2, 1)
assert "Paris" in lines_of(batch.output_file_id)["a"]["response"]["body"]["choices"][0]["message"]["content"]
assert lines_of(batch.error_file_id)["c"]["response"]["body"]["error"]["param"] == "colour"
assert batch.usage is not None
assert batch.usage.output_tokens > 0

failed = ended(batch_of(line("a", "Hello"), line("a", "Hello"), "{"))
assert failed.status == "failed"
assert failed.errors is not None
assert [(error.code, error.line) for error in failed.errors.data or ()] == [("duplicate_custom_id", 2), ("invalid_json_line", 3)]

# Long answers, so that it is in the middle.
cancelled = batch_of(*(line(str(number), "Tell a story.", max_completion_tokens=500, ignore_eos=True) for number in range(50)))
while cancelled.status == "validating":
    time.sleep(0.1)
    cancelled = client.batches.retrieve(cancelled.id)
cancelled = ended(client.batches.cancel(cancelled.id))
assert cancelled.status == "cancelled"
assert all(entry["error"]["code"] == "batch_cancelled" for entry in lines_of(cancelled.error_file_id).values())
assert [one.id for one in client.batches.list(limit=1)][:3] == [cancelled.id, failed.id, batch.id]

# The helper of the client sends a file in parts of its own choice.
upload = client.uploads.upload_file_chunked(
    file=b"The code is 42.", filename="notes.txt", bytes=15, mime_type="text/plain", purpose="user_data", part_size=4
)
assert upload.status == "completed"
assert upload.file is not None
assert client.files.content(upload.file.id).content == b"The code is 42."
content: Any = [{"type": "input_file", "file_id": upload.file.id}, {"type": "input_text", "text": "What is the code?"}]
client.responses.create(model=model, input=[{"role": "user", "content": content}], temperature=0, max_output_tokens=16)

image = client.files.create(file=io.BytesIO(Path(picture).read_bytes()), purpose="vision")
content = [{"type": "input_image", "file_id": image.id, "detail": "auto"}, {"type": "input_text", "text": "Where is the triangle?"}]
answer = client.responses.create(model=model, input=[{"role": "user", "content": content}], temperature=0, max_output_tokens=8)
assert "Top" in answer.output_text, answer.output_text

assert {file.id for file in client.files.list(purpose="vision")} == {image.id}
assert client.files.delete(image.id).deleted
try:
    client.files.retrieve(image.id)
    raise AssertionError("it was deleted")
except openai.NotFoundError:
    pass
print("ok")

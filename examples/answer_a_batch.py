"""A batch: the server answers a file of requests, also while this program is away.

    make serve
    python examples/answer_a_batch.py examples/requests.jsonl

The model is in each line of the file.
"""

import json
import os
import sys
import time
from pathlib import Path

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)

requests = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("requests.jsonl")
file = client.files.create(file=requests, purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(1)
    batch = client.batches.retrieve(batch.id)
    print(batch.status, f"{batch.request_counts.completed} of {batch.request_counts.total}", file=sys.stderr)

# A file with a wrong line is refused as a whole.
for error in (batch.errors and batch.errors.data) or ():
    print(f"line {error.line}: {error.message}")

# What was answered is in one file and what was refused in another, each in the order in which they ended.
for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
    for result in map(json.loads, client.files.content(file_id).content.splitlines()):
        body = (result["response"] or {}).get("body", {})
        answered = "choices" in body
        print(
            f"{result['custom_id']}:",
            body["choices"][0]["message"]["content"] if answered else body.get("error") or result["error"],
        )

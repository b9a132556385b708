"""What `helm test` runs: each model answers.

Arguments: for each model, the gateway's URL and the name of the model. Environment: API_KEY, PATIENCE_S.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

#: Seconds to wait for a model, which may be loading, or scaled to zero.
PATIENCE_S = float(os.environ.get("PATIENCE_S", "300"))
QUESTION = "What is the capital of France?"
#: Task -> the route that a model with this task is asked by, and the body. The first that a model has counts.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": ("/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16}),
    "embed": ("/v1/embeddings", {"input": QUESTION}),
    "classify": ("/classify", {"input": QUESTION}),
    "score": ("/score", {"text_1": QUESTION, "text_2": "Paris"}),
    "token_embed": ("/pooling", {"input": QUESTION, "task": "token_embed"}),
}


def ask(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON of an answer. Tries again while the gateway or a model is not ready (503)."""
    headers = {"content-type": "application/json"}
    if key := os.environ.get("API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    # The certificate has the name of the host that clients use; this is a check of the service inside the cluster.
    context = ssl._create_unverified_context()  # noqa: S323
    until = time.monotonic() + PATIENCE_S
    while True:
        request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if error.code != 503 or time.monotonic() > until:
                sys.exit(f"{url}: {error.code} {text}")
        except OSError as error:
            if time.monotonic() > until:
                sys.exit(f"{url}: {error}")
        time.sleep(1)


def main(arguments: Sequence[str]) -> None:
    """Ask each model. Exits with 1 and a message if one does not answer."""
    until = time.monotonic() + PATIENCE_S
    for gateway, name in zip(arguments[::2], arguments[1::2], strict=True):
        # The frontend may still start. Whether /ready says that an engine is there is not asked: one that is scaled to zero
        # starts when a request waits.
        while name not in (served := {model["id"]: model["triptych"]["tasks"] for model in ask(f"{gateway}/v1/models")["data"]}):
            if time.monotonic() > until:
                sys.exit(f"{name} is not among the models of the gateway: {', '.join(sorted(served))}")
            time.sleep(1)
        path, body = next(request for task, request in REQUESTS.items() if task in served[name])
        answer = ask(gateway + path, {"model": name, **body})
        print(f"{name}: {answer['choices'][0]['message']['content'] if 'choices' in answer else f'{path} answers'}")


if __name__ == "__main__":
    main(sys.argv[1:])

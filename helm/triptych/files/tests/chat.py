"""What `helm test` runs: the gateway is ready, and each model answers.

Arguments: the gateway's URL, then NAME=TASK for each model. Environment: API_KEY, PATIENCE_S.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from typing import Any

#: Seconds to wait for a model, which may be loading, or scaled to zero.
PATIENCE_S = float(os.environ.get("PATIENCE_S", "300"))


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


def main(gateway: str, models: list[str]) -> None:
    """Ask each model. Exits with 1 and a message if one does not answer."""
    ask(f"{gateway}/ready")
    served = {model["id"] for model in ask(f"{gateway}/v1/models")["data"]}
    for name, _, task in (model.rpartition("=") for model in models):
        if name not in served:
            sys.exit(f"{name} is not among the models of the gateway: {', '.join(sorted(served))}")
        if task == "embed":
            vector = ask(f"{gateway}/v1/embeddings", {"model": name, "input": "Paris"})["data"][0]["embedding"]
            print(f"{name}: a vector of {len(vector)} numbers")
        else:
            question = [{"role": "user", "content": "What is the capital of France?"}]
            answer = ask(f"{gateway}/v1/chat/completions", {"model": name, "messages": question, "max_tokens": 16})
            print(f"{name}: {answer['choices'][0]['message']['content']}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

"""Retrieval-augmented generation: find the paragraphs of text files that matter to a question, and answer from them.

    .venv/bin/triptych serve smollm2-135m-vision embed=all-minilm-l6-v2
    python examples/answer_from_files.py "How long is lost property kept?" examples/handbook/*.txt

Here one embedding model finds the paragraphs and ranks them, so the second step changes little. A cross-encoder ranks better: serve
it too (rank=BAAI/bge-reranker-base), and set RERANK_MODEL=rank. A larger MODEL reads more carefully than the default one.
"""

import os
import sys
from pathlib import Path

import numpy as np
from openai import OpenAI

MODEL = os.environ.get("MODEL", "smollm2-135m-vision")
EMBED_MODEL = os.environ.get("EMBED_MODEL", "embed")
RERANK_MODEL = os.environ.get("RERANK_MODEL", EMBED_MODEL)
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)


def embed(texts: list[str]) -> np.ndarray:
    """Vectors of length 1, float32 [texts, dimensions]."""
    return np.array([item.embedding for item in client.embeddings.create(model=EMBED_MODEL, input=texts).data], dtype=np.float32)


question = sys.argv[1] if len(sys.argv) > 1 else "How long is lost property kept?"
files = [Path(name) for name in sys.argv[2:]] or sorted(Path(__file__).with_name("handbook").glob("*.txt"))

# 1. Cut the files into paragraphs, and make a vector of each. A larger collection would keep the vectors.
paragraphs = [(file.name, " ".join(text.split())) for file in files for text in file.read_text().split("\n\n")]
vectors = embed([text for _, text in paragraphs])

# 2. Take the paragraphs whose vectors are nearest to that of the question.
near = [paragraphs[index] for index in np.argsort(-vectors @ embed([question])[0])[:6]]

# 3. Rank these again, each together with the question. The client of OpenAI has no method for this route.
body = {"model": RERANK_MODEL, "query": question, "documents": [text for _, text in near], "top_n": 2}
best = [near[result["index"]] for result in client.post("/rerank", body=body, cast_to=object)["results"]]

# 4. Answer from what is left.
context = "\n\n".join(text for _, text in best)
prompt = f"{context}\n\nAnswer in one sentence, from the text above only: {question}"
answer = client.chat.completions.create(
    model=MODEL, messages=[{"role": "user", "content": prompt}], temperature=0, max_completion_tokens=200
)
print(answer.choices[0].message.content)
print("Read in:", ", ".join(dict.fromkeys(name for name, _ in best)))

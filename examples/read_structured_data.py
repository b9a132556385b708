"""Structured data: a pydantic model out of a text. The answer always has the model's shape.

    make serve
    python examples/read_structured_data.py "Anna Berg from Oslo ordered 3 lamps."

The server generates only what the schema allows. What the fields say depends on the model: the default one gets easy texts right,
Qwen/Qwen3-0.6B and larger ones more.
"""

import os
import sys
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel, Field

MODEL = os.environ.get("MODEL", "smollm2-135m-vision")
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)


class Order(BaseModel):
    """What somebody ordered."""

    customer: str = Field(max_length=40)
    city: str = Field(max_length=40)
    item: Literal["lamp", "chair", "table"]
    quantity: int = Field(ge=1, le=99)


text = " ".join(sys.argv[1:]) or "Anna Berg from Oslo ordered 3 lamps."
completion = client.chat.completions.parse(
    model=MODEL,
    messages=[
        {"role": "system", "content": "Write the order as JSON with the fields customer, city, item and quantity."},
        {"role": "user", "content": text},
    ],
    temperature=0,
    response_format=Order,
)
order = completion.choices[0].message.parsed
print(f"{order.quantity} x {order.item} to {order.customer}, {order.city}")
print(order.model_dump_json(indent=2))

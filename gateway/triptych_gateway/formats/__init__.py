"""From the contract's messages to OpenAI's JSON. Per-token work is done on bytes, with no model objects in between."""

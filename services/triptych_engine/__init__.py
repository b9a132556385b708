"""The engine: scheduler, paged KV cache and model. Speaks token ids."""

"""The kinds of layers that configurations name besides those of attention."""

from __future__ import annotations

#: With a recurrent state, and with attention too if they are hybrids themselves.
RECURRENT_LAYER_TYPES = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding"})
#: They compute each token by itself.
STATELESS_LAYER_TYPES = frozenset({"mlp", "moe"})

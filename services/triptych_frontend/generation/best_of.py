"""Chooses the likeliest of several choices."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.v1 import generation_pb2

from triptych_frontend.generation.choice import Choice


def best_deltas(choices: Sequence[Choice], num_best: int) -> list[generation_pb2.ChoiceDelta]:
    """The output of the choices with the highest mean log probability, best first. All choices have ended."""
    ranked = sorted(choices, key=lambda choice: choice.mean_logprob, reverse=True)[:num_best]
    deltas = []
    for index, choice in enumerate(ranked):
        for delta in choice.take():
            delta.index = index
            if index:
                delta.ClearField("prompt_logprobs")
            deltas.append(delta)
    return deltas

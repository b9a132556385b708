"""Beam search, by vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.errors import InvalidRequestError
from triptych.offline.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput
from triptych.v1 import common_pb2, generation_pb2


@dataclass(kw_only=True)
class BeamSearchParams:
    """How the likeliest texts are searched.

    Args:
        beam_width: beams that are kept at each position, and texts that are returned.
        max_tokens: most tokens to generate.
        ignore_eos: do not end at the model's end-of-sequence tokens.
        temperature: 0; beams are ordered by the model's own probabilities.
        length_penalty: a text's score is the sum of its log probabilities divided by its number of tokens to this power.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0

    def to_options(self) -> generation_pb2.GenerationOptions:
        """The same as a message of the contracts. Raises InvalidRequestError if the temperature is not 0."""
        if self.temperature:
            raise InvalidRequestError("a beam search has the temperature 0", field="temperature", limit=0, value=self.temperature)
        return generation_pb2.GenerationOptions(
            n=self.beam_width,
            beam_search=generation_pb2.BeamSearch(width=self.beam_width, length_penalty=self.length_penalty),
            sampling=common_pb2.SamplingParams(max_tokens=self.max_tokens, ignore_eos=self.ignore_eos, logprobs=0),
        )


def beam_search_output(output: RequestOutput) -> BeamSearchOutput:
    """The texts of one prompt, best first."""
    return BeamSearchOutput(
        [
            BeamSearchSequence(
                tokens=[*output.prompt_token_ids, *completion.token_ids],
                logprobs=completion.logprobs or [],
                cum_logprob=completion.cumulative_logprob or 0.0,
                text=(output.prompt or "") + completion.text,
                finish_reason=completion.finish_reason,
                stop_reason=completion.stop_reason,
            )
            for completion in output.outputs
        ]
    )

"""Whether servers answer with the same weights: they are asked for the likeliest next tokens, and compared."""

import math
from typing import TypeAlias

from pydantic import BaseModel

Drawn: TypeAlias = list[tuple[int, float]]
"""The tokens of a response, each with the server's log-probability."""
TOLERANCE = 0.1
"""Largest difference between two log-probabilities of the sampled tokens, in nats; in training, as a mean over the
tokens of an update. bfloat16 rounding alone causes 0.03 to 0.05, so this detects another model but not always a policy
from a few updates ago."""
PROBES = 4
"""Number of new connections to each address that are compared: one address may be that of several servers."""
PROBE_TOKENS = 8
"""Number of likeliest tokens that are compared."""


class LogProbs(BaseModel):
    """Log-probabilities of the tokens of a completion, in OpenAI's form."""

    token_logprobs: list[float]


def disagreement(one: Drawn, other: Drawn) -> float:
    """Return by how many nats two greedy continuations disagree, at most; `nan` if a log-probability is.

    They are compared up to the first token that differs. Both are the likeliest there, so they should be equally
    likely, each with at most half of the probability.
    """
    distances = [0.0]
    for (token, log_prob), (token_there, log_prob_there) in zip(one, other, strict=False):
        distances.append(abs(log_prob - log_prob_there))
        if token != token_there:
            distances.append(min(log_prob, log_prob_there) - math.log(0.5))
            break
    return math.nan if any(map(math.isnan, distances)) else max(distances)

"""Weights of tokens that another policy has sampled than the one that trains: truncated importance sampling.

Ionides, Truncated Importance Sampling (2008). The weight of a token is min(pi_policy / pi_sampler, `MOST`); without the
bound, a few tokens that the sampler found unlikely would decide an update.
"""

import torch
from torch import Tensor

from .. import processes
from .sampling import Responses, blocks
from .shared_base import SharedBase

MOST = 2.0
"""Largest importance weight of a token."""
_ROUNDING = 1e-3
"""Difference of log-probabilities in nats that counts as none: in float32 they differ less with the server's other
work, and a resumed run should repeat an unbroken one."""


@torch.no_grad()
def policy_log_probs(model: SharedBase, responses: Responses, most_tokens: int) -> Tensor:
    """Return the policy's log-probabilities of the responses' tokens, (B, T), 0 at padding."""
    model.train()
    parts = processes.each(
        blocks(responses, most_tokens), lambda block: model.read(block.packed, responses.length).log_probs_RT
    )
    return torch.cat(parts) * responses.mask_BT


def importance(policy_BT: Tensor, sampler_BT: Tensor) -> Tensor:
    """Return the importance weight of each token, (B, T), from the log-probabilities of policy and sampler."""
    differences_BT = policy_BT - sampler_BT
    return torch.exp(differences_BT.where(differences_BT.abs() > _ROUNDING, 0.0)).clamp(max=MOST)

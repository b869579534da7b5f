"""How much the divergence from the SFT policy weighs from update to update: fixed, or steered to a target.

Ziegler et al., Fine-Tuning Language Models from Human Preferences (2019), section 2.2:

    e_t = clip((KL_t - target) / target, -0.2, 0.2)
    beta_{t+1} = beta_t * (1 + K * e_t)

Where they set K = 0.1, here K = responses of an update / horizon and at most 1, so that a horizon is a number of
responses whatever the batch. There is no state beside the facts of the last update, which checkpoints keep.
"""

from collections.abc import Sequence

from retroformer.train_sections import Ppo

MOST_ERROR = 0.2
"""Of one update, as a share of the target: a burst of divergence does not throw the weight about."""


def next_kl_weight(weight: float, kl: float, page: Ppo) -> float:
    """beta_{t+1} after an update with `weight` whose responses diverged by `kl`, the mean of their sums of k1."""
    if page.kl_target is None:
        return weight
    error = min(max(kl / page.kl_target - 1, -MOST_ERROR), MOST_ERROR)
    return weight * (1 + error * min(1.0, page.batch_size / page.kl_horizon))


def kl_weight_after(done: Sequence[dict[str, float]], page: Ppo) -> float:
    """The weight for the update after these, by their facts; the page's own for the first."""
    return next_kl_weight(done[-1]["kl_weight"], done[-1]["kl"], page) if done else page.kl

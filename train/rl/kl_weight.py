"""The KL coefficient of each PPO update: fixed, or adapted to a target KL.

Ziegler et al., Fine-Tuning Language Models from Human Preferences (2019), section 2.2:

    e_t = clip((KL_t - target) / target, -0.2, 0.2)
    beta_{t+1} = beta_t * (1 + K * e_t)

They set K = 0.1; here K = responses of an update / horizon, at most 1, so a horizon is a number of responses whatever
the batch size. The only state is in the facts of the last update, which checkpoints keep.
"""

from collections.abc import Sequence

from retroformer.experiment.sections.train import Ppo

MOST_ERROR = 0.2
"""Bound of e_t, so that one update with a large KL changes the coefficient only a little."""


def next_kl_weight(weight: float, kl: float, settings: Ppo) -> float:
    """Return beta_{t+1} after an update with coefficient `weight` and mean KL of a response `kl` (sum of k1)."""
    if settings.kl_target is None:
        return weight
    error = min(max(kl / settings.kl_target - 1, -MOST_ERROR), MOST_ERROR)
    return weight * (1 + error * min(1.0, settings.batch_size / settings.kl_horizon))


def kl_weight_after(done: Sequence[dict[str, float]], settings: Ppo) -> float:
    """Return the KL coefficient for the update after `done`, whose facts are given; `settings.kl` for the first."""
    return next_kl_weight(done[-1]["kl_weight"], done[-1].get("kl", 0.0), settings) if done else settings.kl

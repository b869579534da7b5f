"""Takes the updates of PPO and GRPO alike: curves, alarms, checkpoints, and what is kept where one cannot be made."""

import logging
from collections.abc import Iterator
from typing import Any

import torch

from retroformer.errors import NotFinite, RetroformerError, ServiceError
from retroformer.progress import line
from retroformer.train_sections import Grpo, Ppo
from train import checkpoint, processes
from train.alarms import Facts, first_rings, ringing
from train.shared_base import SharedBase
from train.stage import Stage
from train.tracking import tracker

logger = logging.getLogger(__name__)


def take_updates(
    stage: Stage,
    settings: Ppo | Grpo,
    updates: Iterator[Facts],
    history: list[Facts],
    model: SharedBase,
    optimizer: torch.optim.Optimizer,
) -> dict[str, Any]:
    """Take the `updates` that follow `history`, and append their facts to it; what metrics.json tells of all of them.

    Raises:
        ServiceError: another process has ended; what is kept is what a kill would have left.
        NotFinite: the update holds infinite numbers or NaN; what is kept is what a kill would have left.
        RetroformerError: the next update cannot be made; those before it are kept.
    """
    steps, resumed_from, rung = stage.experiment.train.checkpoint_steps, len(history), len(first_rings(history))
    shown = line(f"train {stage.name}", settings.updates, resumed_from, console=processes.screen())
    with tracker(stage) as track, shown as progress:
        try:
            for facts in updates:
                history.append(facts | ringing(history, facts))
                track(len(history), history[-1])
                progress.show(len(history), f"score {facts['score']:+.2f}  kl {facts['kl']:.2f}")
                for alarm in first_rings(history)[rung:]:
                    logger.warning(alarm)
                    rung += 1
                if len(history) % steps == 0:
                    checkpoint.save(stage.checkpoints, len(history), model, optimizer, history)
        except ServiceError:
            # Another process has ended, maybe between two passes over a batch: this policy belongs to no update.
            raise
        except NotFinite as error:
            # The same, and the pass may have come after others over the batch.
            raise NotFinite(f"Update {len(history) + 1} of {stage.name} cannot be taken. {error}") from None
        except RetroformerError:
            # No server, endpoint or budget for the next update: those before it need not be done again.
            if len(history) > resumed_from:
                checkpoint.save(stage.checkpoints, len(history), model, optimizer, history)
            raise
    counts = {"updates": len(history), "resumed_from_update": resumed_from}
    return counts | {"alarms": first_rings(history), "history": history}

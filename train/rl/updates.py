"""The outer loop of PPO and GRPO: takes their updates, with curves, alarms and checkpoints."""

import logging
from collections.abc import Iterator
from typing import Any

import torch

from retroformer.errors import NotFinite, RetroformerError, ServiceError
from retroformer.experiment.sections.train import Grpo, Ppo
from retroformer.progress import line

from .. import preemption, processes
from ..stage import Stage
from ..tracking import tracker
from . import checkpoint
from .alarms import Facts, first_rings, ringing
from .shared_base import SharedBase

logger = logging.getLogger(__name__)


def take_updates(
    stage: Stage,
    settings: Ppo | Grpo,
    updates: Iterator[Facts],
    history: list[Facts],
    model: SharedBase,
    optimizer: torch.optim.Optimizer,
) -> dict[str, Any]:
    """Take the `updates` that follow `history`, append their facts to it, and return entries for metrics.json.

    Raises:
        ServiceError: another process has ended; the checkpoints are those that a kill would have left.
        NotFinite: the update has infinite numbers or NaN; the checkpoints are those that a kill would have left.
        Stopped: SIGTERM has asked for it; a checkpoint is saved.
        RetroformerError: the next update cannot be computed; a checkpoint of the previous ones is saved.
    """
    steps, resumed_from, rung = stage.experiment.train.checkpoint_steps, len(history), len(first_rings(history))
    progress_line = line(f"train {stage.name}", settings.updates, resumed_from, console=processes.screen())
    with tracker(stage) as track, progress_line as progress:
        try:
            for facts in updates:
                history.append(facts | ringing(history, facts))
                track(len(history), history[-1])
                divergence = f"  kl {facts['kl']:.2f}" if "kl" in facts else ""
                progress.show(len(history), f"score {facts['score']:+.2f}{divergence}")
                for alarm in first_rings(history)[rung:]:
                    logger.warning(alarm)
                    rung += 1
                asked = len(history) < settings.updates and preemption.stop_requested()
                if asked or len(history) % steps == 0:
                    checkpoint.save(stage.checkpoints, len(history), model, optimizer, history)
                if asked:
                    raise preemption.stopped(stage.name, len(history), settings.updates, "update")
        except preemption.Stopped:
            raise
        except ServiceError:
            # Another process has ended, perhaps between two passes over a batch, so this policy is half-updated.
            raise
        except NotFinite as error:
            # The policy may be half-updated here, too.
            raise NotFinite(f"Update {len(history) + 1} of {stage.name} cannot be taken. {error}") from None
        except RetroformerError:
            # The next update lacks a server, an endpoint or budget. The previous ones need not be repeated.
            if len(history) > resumed_from:
                checkpoint.save(stage.checkpoints, len(history), model, optimizer, history)
            raise
    counts = {"updates": len(history), "resumed_from_update": resumed_from}
    return counts | {"alarms": first_rings(history), "history": history}

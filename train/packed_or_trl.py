"""Chooses the trainer of SFT, the reward model and DPO."""

from typing import Any

from .group_trainer import GroupTrainer, Objective
from .shared_prompt.group import Groups
from .stage import Stage


def make_trainer(stage: Stage, model: Any, groups: Groups, objective: Objective, *, quick: bool = True) -> Any:
    """Return the trainer that `train.trainer` names, with a `reader`.

    With `quick`, short packed rows are read by quick attention.
    """
    if stage.experiment.train.trainer == "packed":
        return GroupTrainer(stage, model, groups, objective, quick=quick)
    from .trl_trainers import trainer_on_groups  # Its import takes seconds.

    return trainer_on_groups(stage, model, groups, objective)

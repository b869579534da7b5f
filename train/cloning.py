"""Behaviour cloning of the household actor: scripted play becomes an adapter that plays, and heeds a line of advice.

Not part of Retroformer's method: it makes the frozen actor that the method is tried on, once, before any experiment.
Reads the games of the page's environment; writes a LoRA adapter in bf16 to runs/NAME/actor.
"""

from collections.abc import Sequence

import torch

from retroformer.config import Experiment
from retroformer.environments import alfworld
from retroformer.environments.sections import Alfworld
from retroformer.errors import ConfigError
from retroformer.progress import line
from train import processes
from train.base import load_tokenizer
from train.demonstrations import Demonstration, counts, demonstrations, transcript
from train.imitation import imitate
from train.stage import Stage


def scripted_play(experiment: Experiment) -> list[Demonstration]:
    """The demonstrations that the page asks for.

    Raises:
        ConfigError: the environment is not ALFWorld.
        MissingInput: the games are not there.
    """
    section, settings = experiment.environment, experiment.train.actor
    if not isinstance(section, Alfworld):
        raise ConfigError("The household actor plays ALFWorld only: set environment.name=alfworld.")
    games = alfworld.taskset(section, experiment.seed)
    made = list[Demonstration]()
    with line("demonstrations", settings.demonstrations, 0, console=processes.screen()) as progress:
        for one in demonstrations(games, settings.demonstrations, settings.actions, experiment.seed):
            made.append(one)
            progress.show(len(made), "")
    return made


def clone(stage: Stage, made: Sequence[Demonstration]) -> None:
    """Train on the demonstrations, and publish the adapter in bf16: what is kept is small, and is what is served."""
    tokenizer = load_tokenizer(stage.experiment.train)
    data = (transcript(tokenizer, one) for one in made)
    imitate(stage, stage.experiment.train.actor, data, counts=counts(made), save_as=torch.bfloat16)

"""Behaviour cloning of an actor: trains an adapter on scripted play to act, and to follow advice.

This is not part of Retroformer's method. It makes the frozen actor of the experiments, once, before any of them.
Reads the demonstrations of the config's environment; writes a LoRA adapter in bf16 to runs/NAME/actor.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from retroformer.environments.extras import Demonstration
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError
from retroformer.experiment.config import Experiment
from retroformer.progress import line

from . import processes
from .base import load_tokenizer
from .data.samples import IGNORED
from .imitation import imitate
from .stage import Stage
from .stage_kinds import DEMONSTRATED_ACTIONS


class LabelledText(NamedTuple):
    """The tokens of a demonstration, and their labels."""

    ids: list[int]
    labels: list[int]


def scripted_play(experiment: Experiment) -> list[Demonstration]:
    """Play the demonstrations that the config asks for.

    Raises:
        ConfigError: the environment has no scripted play.
        MissingInput: the environment's data are missing.
    """
    section, settings = experiment.environment, experiment.train.actor
    play = extras(section).demonstrations
    if play is None:
        raise ConfigError(f"There is no scripted play for {section.name}: set environment.name to another environment.")
    demonstrations = list[Demonstration]()
    with line("demonstrations", settings.demonstrations, 0, console=processes.screen()) as progress:
        for demonstration in play(section, settings.demonstrations, DEMONSTRATED_ACTIONS, experiment.seed):
            demonstrations.append(demonstration)
            progress.show(len(demonstrations), "")
    return demonstrations


def clone(stage: Stage, demonstrations: Sequence[Demonstration]) -> None:
    """Train on the demonstrations, and publish the adapter in bf16, the dtype in which it is served."""
    tokenizer = load_tokenizer(stage.experiment.train)
    data = (labelled_text(tokenizer, demonstration) for demonstration in demonstrations)
    imitate(stage, stage.experiment.train.actor, data, counts=counts(demonstrations), save_as=torch.bfloat16)


def labelled_text(tokenizer: Any, demonstration: Demonstration) -> LabelledText:
    """Tokenise the whole text of a demonstration, and label the tokens of the actor's own words."""
    encoded = tokenizer(demonstration.text, add_special_tokens=False, return_offsets_mapping=True)
    own = [is_own for piece, is_own in demonstration.pieces for _ in piece]
    labels = [
        token if own[start] else IGNORED
        for token, (start, _) in zip(encoded.input_ids, encoded.offset_mapping, strict=True)
    ]
    return LabelledText(list(encoded.input_ids), labels)


def counts(demonstrations: Sequence[Demonstration]) -> dict[str, Any]:
    """Count demonstrations and games, demonstrations by kind, and those that end solved by kind."""
    return {
        "demonstrations": len(demonstrations),
        "games": len({demonstration.task_id for demonstration in demonstrations}),
        "kinds": dict(sorted(Counter(demonstration.kind for demonstration in demonstrations).items())),
        "solved": dict(sorted(Counter(each.kind for each in demonstrations if each.solved).items())),
    }

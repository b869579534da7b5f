"""Scripted actor of the papers' environments that loses without advice and wins with about half of it."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from collect.tasks import tasks_of_round
from retroformer.config.experiment import Experiment
from retroformer.environments import alfworld, hotpotqa, webshop
from retroformer.method.prompts import load_pack
from retroformer.method.records import Task
from tests.support.endpoint import Body, prompt_of
from tests.support.scripted_model import ScriptedModel

_ACTION = re.compile(r"^(?:> |Action \d+: )", re.MULTILINE)
_PRODUCT = re.compile(r"\[(B0\w{8})\]")


class AdvisedModel:
    """Plays the tasks that a config collects: as `ScriptedModel`, or to a good end if a hash of the advice says so."""

    def __init__(self, experiment: Experiment) -> None:
        self._loses = ScriptedModel(experiment)
        self._remember = load_pack(experiment.actor.prompts, experiment.environment.name).remember.strip()
        self._wins = _wins(experiment)

    def __call__(self, body: Body) -> str:
        prompt = prompt_of(body)
        for opening, actions in self._wins.items():
            before, _, attempt = prompt.rpartition(opening)
            if self._remember in before and hashlib.sha256(before.encode()).digest()[0] % 2:
                return _step(attempt, actions)
        return self._loses(body)


def _step(attempt: str, actions: Sequence[str]) -> str:
    """Return the next action in the form that the prompt asks for; {product} is the first product that was seen."""
    number = len(_ACTION.findall(attempt))
    action = actions[number].format(product=next(iter(_PRODUCT.findall(attempt)), ""))
    return action if attempt.endswith(">") else f" I heed the advice.\nAction {number + 1}: {action}"


def _wins(experiment: Experiment) -> Mapping[str, Sequence[str]]:
    """Return actions that win each task, or in WebShop buy something near it, by the task's opening."""
    section, wins = experiment.environment, dict[str, Sequence[str]]()
    module = {"alfworld": alfworld, "hotpotqa": hotpotqa, "webshop": webshop}[section.name]
    games = module.taskset(section, experiment.seed)
    environment = games.environment()
    for task in tasks_of_round(experiment):
        opening = environment.reset(task).observation.strip()
        wins[opening] = _actions(games, task, opening)
    return wins


def _actions(games: Any, task: Task, opening: str) -> Sequence[str]:
    if isinstance(games, hotpotqa.HotpotqaTaskset):
        return [f"Finish[{games.answer(task)}]"]
    if isinstance(games, webshop.WebshopTaskset):
        return [f"search[{opening.splitlines()[2]}]", "click[{product}]", "click[Buy Now]"]
    walkthrough: Sequence[str] = games.walkthrough(task)
    return walkthrough

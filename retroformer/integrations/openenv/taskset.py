"""Tasks and environment of an OpenEnv server."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from retroformer.environments.tasksets import FileTaskset, not_reset, read_tasks, row_of
from retroformer.errors import ConfigError, EnvironmentFailure
from retroformer.files.text import storable
from retroformer.integrations.openenv.server import (
    ActionForm,
    OpenEnv,
    OpenEnvSession,
    RefusedAction,
    ServerAnswer,
    action_form,
)
from retroformer.method.records import Task, Transition

_SPLITS = {"train": 0, "held_out": 2**30}
"""First seed of each split, if tasks are seeds with the ids SPLIT/NUMBER."""


class OpenEnvEnvironment:
    """Episodes in sessions of their own."""

    def __init__(self, section: OpenEnv, resets: Mapping[str, dict[str, Any]]) -> None:
        self._section, self._resets = section, resets
        self._session: OpenEnvSession | None = None
        self._form: ActionForm | None = None
        self._rewards = list[float]()
        self._steps = 0

    def reset(self, task: Task) -> Transition:
        """Open a session and begin the episode.

        Raises:
            UnknownTask: the split has no such task.
            EnvironmentFailure: the server failed, or its reset has already ended the episode.
            ConfigError: the config does not fit the server.
        """
        arguments = row_of(self._resets, task)
        self._close()
        self._form = self._form or action_form(self._section)
        self._session = OpenEnvSession(self._section)
        self._rewards, self._steps = [], 0
        opening = self._session.ask("reset", arguments)
        if opening.done:
            self._close()
            # Neither success nor failure: nothing was played, and an attempt without steps has no return.
            raise EnvironmentFailure(
                "The OpenEnv server's reset ended the episode at once (done: true), so there is nothing to play: give "
                "the task another `reset` in environment.data, or leave it out."
            )
        return Transition(observation=self._text_of(opening))

    def step(self, action: str) -> Transition:
        """Do an action. One that the server refuses is the agent's own failure: it changes nothing, unless the server
        closes the session, which ends the episode with the return so far. Raises EnvironmentFailure: the server failed.
        """
        if self._session is None or self._form is None:
            raise not_reset()
        self._steps += 1
        try:
            data = self._form.action(action)
            answer = self._session.ask("step", data, {*self._form.fields, *data})
            self._rewards.append(answer.reward or 0.0)
            observation, done = self._text_of(answer), answer.done
        except RefusedAction as refusal:
            observation, done = f"The action was refused: {refusal}", refusal.session_ended
        truncated = not done and self._steps >= self._section.max_steps
        if not (done or truncated):
            return Transition(observation=observation)
        self._close()
        score = self._section.score(self._rewards)
        if done:
            observation += f"\nThe episode is over; its return is {score:.3g} of 1."
        return Transition(
            observation=observation, reward=score, terminated=done, truncated=truncated, success=score == 1
        )

    def _text_of(self, answer: ServerAnswer) -> str:
        """Return what the actor sees of an answer. Raises EnvironmentFailure."""
        name, observation = self._section.observation, answer.observation
        if name is None:
            value: Any = {key: value for key, value in observation.items() if key != "metadata"}
        elif name in observation:
            value = observation[name]
        else:
            raise EnvironmentFailure(
                f"The OpenEnv server's observation has no field {name!r}, only {', '.join(observation)}: correct "
                "environment.observation."
            )
        return storable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def taskset(section: OpenEnv, seed: int = 0) -> FileTaskset[dict[str, Any]]:
    """Return the tasks that a section describes; the seed of the experiment does not change them."""
    return FileTaskset(section.name, section.split, partial(_resets, section), partial(OpenEnvEnvironment, section))


def _resets(section: OpenEnv) -> dict[str, dict[str, Any]]:
    """Return the arguments of the server's reset by task id. Raises MissingInput, ConfigError."""
    if section.data is None:
        if section.split not in _SPLITS:
            raise ConfigError(f"environment.split={section.split}: without environment.data choose train or held_out.")
        first = _SPLITS[section.split]
        return {f"{section.split}/{number}": {"seed": first + number} for number in range(section.size)}
    resets = {task_id: task.get("reset", {}) for task_id, task in read_tasks(section.data, section.split).items()}
    for task_id, arguments in resets.items():
        if not isinstance(arguments, dict):
            raise ConfigError(f"The task {task_id!r} has a `reset` that is not an object: correct environment.data.")
    return resets

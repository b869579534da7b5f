"""Play by hand, to check an environment from outside: the same environment that rollouts use, action by action."""

import difflib
import json
import sys
from collections.abc import Iterator

from retroformer.config.experiment import Experiment
from retroformer.environments.registry import taskset
from retroformer.errors import ConfigError, UnknownTask
from retroformer.files.text import has_surrogate
from retroformer.method.protocols import Environment
from retroformer.method.records import Task, Transition


def list_tasks(experiment: Experiment) -> None:
    """Print the id of every task of the split, one per line, in official order."""
    for task in taskset(experiment.environment, experiment.seed).tasks():
        print(task.id)


def play(experiment: Experiment, task_id: str, *, as_json: bool) -> None:
    """Play one task with the actions on standard input, until they or the episode end.

    The task may be in any split of the environment's data. With `as_json`, every line has step, action (null at the
    reset), observation, reward, terminated, truncated and return. Raises UnknownTask.
    """
    if has_surrogate(task_id):
        raise ConfigError(f"The task {task_id!r} is not UTF-8: write it in that encoding.")
    source = taskset(experiment.environment, experiment.seed)
    environment: Environment = source.environment()
    tasks = {task.id: task for task in source.tasks()}
    section = experiment.environment
    task = tasks.get(task_id) or Task(id=task_id, environment=section.name, split=section.split)
    try:
        transition, total = environment.reset(task), 0.0
    except UnknownTask:
        close = difflib.get_close_matches(task_id, tasks, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "--list prints all of them."
        raise UnknownTask(f"No task {task_id!r} in this split: {hint}") from None
    _show(0, None, transition, total, as_json)
    for step, line in enumerate(_typed_actions(), start=1):
        if transition.over:
            break
        action = line.rstrip("\r\n")
        transition = environment.step(action)
        total += transition.reward
        _show(step, action, transition, total, as_json)


def _typed_actions() -> Iterator[str]:
    """Yield the lines of standard input one by one, as the user waits for the answer to each."""
    for number, line in enumerate(iter(sys.stdin.buffer.readline, b""), start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            raise ConfigError(f"Line {number} of standard input is not UTF-8: send it in that encoding.") from None


def _show(step: int, action: str | None, transition: Transition, total: float, as_json: bool) -> None:
    if as_json:
        line = {
            "step": step,
            "action": action,
            "observation": transition.observation,
            "reward": transition.reward,
            "terminated": transition.terminated,
            "truncated": transition.truncated,
            "return": total,
        }
        text = json.dumps(line, ensure_ascii=False)
    else:
        text = transition.observation
        if transition.over:
            text += f"\n[{'terminated' if transition.terminated else 'truncated'}, return {total:g}]"
    print(text, flush=True)

"""A run of many stories for benchmarks/viewer.py: written through the store's own interface, the same for one seed.

It has three experiments in one store, each with collected advice, four evaluated arms that share their first attempts
(two of them are training seeds of one arm), invalid attempts and marks; and folders of training stages with curves. The
long stories are in the first experiment. Words are drawn by Zipf's law from a vocabulary of 20,000, so that some are in
every text and most are rare; each author prefers some of them.
"""

import json
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from retroformer.arm_names import COLLECT, FIRST_TRIAL
from retroformer.records import (
    Author,
    Ending,
    Key,
    Message,
    Outcome,
    Reflection,
    Sampling,
    Step,
    Task,
    Trajectory,
    Usage,
)
from retroformer.stage_metrics import METRICS
from retroformer.store import NewInvalid, NewReflection, NewTrajectory, Store

RUNS = ("alpha", "beta", "gamma")
AUTHORS = {"eval/retry": "base", "eval/warm": "warm", "eval/trained/ppo-1": "ppo-1", "eval/trained/ppo-2": "ppo-2"}
"""Evaluated arms and the models that write their advice."""
LONG = "long"
"""Arm of the long stories."""
BUSHY = "bushy"
"""Task of one long story with 13 attempts: four candidates at each of three trials."""
_STORIES_AT_ONCE = 40
_MARKED = 300
"""Marked stories of an experiment."""
Facts = list[NewTrajectory | NewReflection | NewInvalid]


@dataclass(frozen=True)
class Size:
    """Size of the run."""

    attempts: int
    """Short attempts, of ten steps; about, as it depends on what is solved."""
    long_stories: int
    """Stories of two attempts with 50 steps each, besides the bushy one."""
    step_characters: int = 4000
    """Characters of a step of a long story."""


class Writer:
    """Draws texts and attempts from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(self._random.choices(letters, k=self._random.randint(2, 9))) for _ in range(20_000)]
        self._weights = list(accumulate(1 / rank for rank in range(1, len(self._words) + 1)))
        # Long texts are cut from this one: drawing 800 MB word by word would take an hour.
        self._source = self.text(200_000)

    @property
    def common_word(self) -> str:
        """The most frequent word."""
        return self._words[0]

    @property
    def rare_word(self) -> str:
        """A word that is in about one of 100 short stories."""
        return self._words[1999]

    def text(self, words: int) -> str:
        return " ".join(self._random.choices(self._words, cum_weights=self._weights, k=words))

    def cut(self, characters: int) -> str:
        """Return a part of a long text."""
        start = self._random.randrange(len(self._source) - characters)
        return self._source[start : start + characters]

    def happens(self, probability: float) -> bool:
        return self._random.random() < probability

    def attempt(self, task: Task, steps: int, characters: int, *, solved: bool) -> Trajectory:
        """Return an attempt with steps of this length; one that failed may have a part of the reward."""
        reward = 1.0 if solved else self._random.choice((0.0, 0.0, 0.25, 0.5))
        played = [
            Step(thought=self.cut(characters // 4), action=f"go {number}", observation=self.cut(characters * 3 // 4))
            for number in range(steps)
        ]
        played[-1] = played[-1].model_copy(update={"reward": reward})
        return Trajectory(
            task=task,
            opening=self.cut(200),
            steps=tuple(played),
            outcome=Outcome.SUCCESS if solved else Outcome.FAILURE,
            ending=Ending.SOLVED if solved else Ending.STEP_LIMIT,
            usage=Usage(calls=steps, prompt_tokens=steps * 400, completion_tokens=steps * 20, dollars=0.001),
        )

    def advice(self, model: str) -> Reflection:
        """Return advice with words that only this author uses."""
        own = " ".join(self._random.choices([f"{model.replace('-', '')}{letter}" for letter in "abcdefgh"], k=4))
        return Reflection(
            text=f"{self.text(60)} {own}",
            prompt=(Message(role="user", content=self.cut(2000)),),
            author=Author(endpoint="embedded", model=model, adapter_sha256="0" * 64),
            sampling=Sampling(max_new_tokens=100),
            usage=Usage(calls=1, prompt_tokens=500, completion_tokens=self._random.randint(40, 100)),
        )


def write_store(folder: Path, size: Size, seed: int = 0) -> Writer:
    """Write the run to FOLDER/experience.db, with the folders of its stages, and return the writer of its texts."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(seed)
    # A collected story has six attempts; an evaluated task has one, and about .7 times 1.8 in each of four arms.
    tasks = max(1, size.attempts // len(RUNS) // 12)
    for number, name in enumerate(RUNS):
        with closing(Store(f"sqlite:///{folder}/experience.db", name)) as store:
            for arm in (COLLECT, FIRST_TRIAL, LONG, *AUTHORS):
                store.declare(arm, {"loop": {"memory": 3}})
            _add(store, _collected(writer, tasks))
            _add(store, _evaluated(writer, tasks))
            if number == 0:
                _add(store, _long(writer, size))
            for marked in range(min(_MARKED, tasks)):
                store.marks.add(
                    COLLECT, f"task-{marked:06}", ("right", "wrong", "leaking")[marked % 3], writer.text(12)
                )
    _write_stages(folder, writer)
    return writer


def _add(store: Store, stories: Iterator[Facts]) -> None:
    waiting = Facts()
    for number, facts in enumerate(stories):
        waiting += facts
        if number % _STORIES_AT_ONCE == 0:
            store.add(waiting)
            waiting = []
    store.add(waiting)


def _collected(writer: Writer, tasks: int) -> Iterator[Facts]:
    """Yield stories of three trials: a failure, then two candidates, then two after the first of them, one repeated."""
    for number in range(tasks):
        task = Task(id=f"task-{number:06}", environment="benchmark", split="train")
        facts: Facts = [NewTrajectory(_key(COLLECT, task), writer.attempt(task, 10, 200, solved=False))]
        for trial, candidate, repeats in ((1, 0, 1), (1, 1, 1), (2, 0, 2), (2, 1, 1)):
            key = _key(COLLECT, task, trial, candidate)
            facts.append(NewReflection(key, 0, writer.advice("base" if number < tasks // 2 else "sft")))
            for repeat in range(repeats):
                solved = writer.happens(0.1 * trial)
                played = writer.attempt(task, 10, 200, solved=solved)
                facts.append(NewTrajectory(key.model_copy(update={"repeat": repeat}), played))
        if writer.happens(0.02):
            facts.append(NewInvalid(_key(COLLECT, task, 3), "EndpointFailure: the server answered 500", Usage(calls=1)))
        yield facts


def _evaluated(writer: Writer, tasks: int) -> Iterator[Facts]:
    """Yield the shared first attempts, and up to two retries of each failure in every arm."""
    for number in range(tasks):
        task = Task(id=f"held-{number:06}", environment="benchmark", split="test")
        solved_at_once = writer.happens(0.3)
        first = writer.attempt(task, 10, 200, solved=solved_at_once)
        facts: Facts = [NewTrajectory(_key(FIRST_TRIAL, task), first)]
        for place, (arm, model) in enumerate(AUTHORS.items()):
            solved = solved_at_once
            for trial in (1, 2):
                if solved:
                    break
                solved = writer.happens(0.15 + 0.05 * place)
                key = _key(arm, task, trial)
                facts.append(NewReflection(key, 0, writer.advice(model)))
                facts.append(NewTrajectory(key, writer.attempt(task, 10, 200, solved=solved)))
        yield facts


def _long(writer: Writer, size: Size) -> Iterator[Facts]:
    for number in range(size.long_stories):
        task = Task(id=f"long-{number:06}", environment="benchmark", split="train")
        retry = _key(LONG, task, 1)
        yield [
            NewTrajectory(_key(LONG, task), writer.attempt(task, 50, size.step_characters, solved=False)),
            NewReflection(retry, 0, writer.advice("base")),
            NewTrajectory(retry, writer.attempt(task, 50, size.step_characters, solved=writer.happens(0.3))),
        ]
    task = Task(id=BUSHY, environment="benchmark", split="train")
    yield [NewTrajectory(_key(LONG, task), writer.attempt(task, 50, size.step_characters, solved=False))]
    for trial in (1, 2, 3):
        for candidate in range(4):
            key = _key(LONG, task, trial, candidate)
            played = writer.attempt(task, 50, size.step_characters, solved=False)
            yield [NewReflection(key, 0, writer.advice("base")), NewTrajectory(key, played)]


def _key(arm: str, task: Task, trial: int = 0, candidate: int = 0) -> Key:
    return Key(arm=arm, task_id=task.id, trial=trial, candidate=candidate)


def _write_stages(folder: Path, writer: Writer) -> None:
    losses = [2.0 / (1 + step / 300) + writer.happens(0.5) * 0.1 for step in range(2000)]
    history = [{"score": update / 300 + writer.happens(0.5) * 0.2, "kl": update / 3000} for update in range(300)]
    stages = {
        "sft": {"losses": losses},
        "reward": {"losses": losses, "held_out_pairs": 400, "held_out_accuracy": 0.64, "held_out_brier": 0.22},
        "ppo-1": {"history": history},
        "ppo-2": {"history": history},
    }
    for name, measures in stages.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / METRICS).write_text(json.dumps({"stage": name.partition("-")[0], **measures}))

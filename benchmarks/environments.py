"""Startup time and speed of each environment, and a comparison with ALFWorld's own wrapper, text by text.

    python benchmarks/environments.py [--data FOLDER] [--only alfworld hotpotqa] [--rounds 3] [--steps 40]

FOLDER (else $RETROFORMER_DATA, else ../shared/data) holds `alfworld`, `hotpotqa`, `webshop` and `programming`; an
environment whose data are missing is skipped. All figures are CPU time (user and system, with ended child processes),
so that other work on the machine has little effect.

ready       a fresh process, from its start to the first observation: interpreter, imports, list of tasks, game. First
            with an empty cache, then with a filled cache, and the part of the latter after the imports
next task   first observation of the next task in a running process, each task for the first time
steps/s     steps of seeded play, without the resets. For `programming`: programs judged by hidden tests, in wall time,
            because the CPU time of sandboxed processes is not visible; measure it on an idle machine

Only ALFWorld's own implementation installs beside ours (extra `alfworld`): WebShop's needs Java and spaCy, HotPotQA's
uses live Wikipedia, and that of the programming tasks runs candidates without a sandbox. Both ALFWorld implementations
play the same games of one unpacked folder with the same actions in turn, and every text is compared.
"""

import argparse
import contextlib
import inspect
import io
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import zstandard

from retroformer.environments.registry import section_of, taskset
from retroformer.errors import EnvironmentFailure, MissingInput, RetroformerError
from retroformer.protocols import Environment
from retroformer.records import Task, Transition

SPLIT, SPURIOUS = "valid_unseen", "fly to the moon"
STOCK_GAMES = 4  # Games per round.

T = TypeVar("T")

Answer = tuple[str, tuple[str, ...], bool]  # Observation, admissible commands, and True if the game is won.

Choose = Callable[[Transition, Transition, random.Random], str]  # Action for the opening and the last transition.


# Readiness is measured with minimal programs: neither imports anything of the other, or of this file.
OURS = """
from retroformer.environments.registry import section_of, taskset
imported = cpu_seconds()
source = taskset(section_of(json.loads(sys.argv[1])))
tasks = source.tasks()
task = next((one for one in tasks if one.id == sys.argv[2]), tasks[0])
source.environment().reset(task)
print(cpu_seconds(), cpu_seconds() - imported, task.id)
"""
STOCK = """
from alfworld.agents.environment import get_environment
wrapper = get_environment("AlfredTWEnv")
imported = cpu_seconds()
_, infos = wrapper(json.loads(sys.argv[1]), "eval_out_of_distribution").init_env(batch_size=1).reset()
print(cpu_seconds(), cpu_seconds() - imported, "/".join(infos["extra.gamefile"][0].split("/")[-3:-1]))
"""


def cpu_seconds() -> float:
    """Return the CPU seconds of this process so far and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class World(NamedTuple):
    """Environment to measure."""

    name: str
    section: dict[str, Any]
    choose: Choose
    folder: str = ""
    """Name of its folder inside the data folder; empty if it generates its data."""
    tasks: int = 12
    clock: Callable[[], float] = cpu_seconds
    """Clock for steps: CPU time if the environment does the work in its own process."""


class Speed(NamedTuple):
    """CPU ms to the next task, and steps per CPU second."""

    next_task: float
    steps: float


def admissible(_: Transition, seen: Transition, chance: random.Random) -> str:
    return chance.choice((*seen.choices, SPURIOUS))


def research(opening: Transition, _: Transition, chance: random.Random) -> str:
    words = [word.strip("?,.") for word in opening.observation.split()]
    names = [word for word in words if word[:1].isupper()] or words
    return chance.choice((f"Search[{chance.choice(names)}]", f"Lookup[{chance.choice(words)}]", "think[hm]"))


def shopping(opening: Transition, seen: Transition, chance: random.Random) -> str:
    words = opening.observation.split()
    return chance.choice((*seen.choices, f"search[{' '.join(chance.sample(words, 4))}]"))


def unfinished(opening: Transition, _: Transition, __: random.Random) -> str:
    return f"{opening.observation.rstrip()}\n    return None\n"


WORLDS = (
    World("alfworld", {"name": "alfworld", "split": SPLIT}, admissible, "alfworld"),
    World("alfworld, generated", {"name": "alfworld", "source": "generated"}, admissible),
    World("hotpotqa", {"name": "hotpotqa", "max_steps": 20}, research, "hotpotqa"),
    World("webshop", {"name": "webshop", "split": "test"}, shopping, "webshop"),
    World(
        "programming",
        {"name": "programming", "own_tests": 0, "max_steps": 1},
        unfinished,
        "programming",
        8,
        time.perf_counter,
    ),
)


def timed(call: Callable[..., T], *arguments: Any, clock: Callable[[], float] = cpu_seconds) -> tuple[T, float]:
    """Return the result of the call and the seconds it took."""
    started = clock()
    returned = call(*arguments)
    return returned, clock() - started


def stock_environment(folder: str) -> Any:
    """Create `alfworld.agents.environment.AlfredTWEnv` as its own scripts do: all games of a split, batch size 1."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from alfworld.agents.environment import get_environment

        return get_environment("AlfredTWEnv")(stock_config(folder), "eval_out_of_distribution").init_env(batch_size=1)


def stock_config(folder: str) -> dict[str, Any]:
    games = {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]}
    return {
        "dataset": {"eval_ood_data_path": folder, "num_eval_games": -1},
        "env": games | {"domain_randomization": False, "expert_type": "handcoded"},
        "general": {"training_method": "dagger"},
        "dagger": {"training": {"max_nb_steps_per_episode": 1000}},
    }


def in_fresh_process(program: str, cache: Path, *words: str) -> tuple[float, float, str]:
    """Return the CPU ms of a process to the first observation, in total and after its imports, and the task id."""
    environment = os.environ | {"RETROFORMER_CACHE": str(cache), "ALFWORLD_DATA": str(cache)}
    # Cache byte code for a checkout, too, as pip does for installed packages.
    environment |= {"PYTHONPYCACHEPREFIX": os.environ["RETROFORMER_CACHE"], "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", f"import json, resource, sys\n{inspect.getsource(cpu_seconds)}{program}", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentFailure(f"A fresh process failed: {done.stderr[-1000:]}")
    whole, imported, task_id = done.stdout.rstrip().rpartition("\n")[2].split(" ")
    return float(whole) * 1000, float(imported) * 1000, task_id


def ready(section: dict[str, Any], cache: Path, task_id: str = "") -> tuple[float, float, float]:
    """Return the CPU ms of a process with an empty cache, then with a filled cache, in total and after its imports."""
    words = (OURS, cache, json.dumps(section), task_id)
    first, (cached, imported, _) = in_fresh_process(*words)[0], in_fresh_process(*words)
    return first, cached, imported


def play(world: World, section: dict[str, Any], steps: int, seed: int) -> Speed:
    """Measure seeded play; each round plays other tasks."""
    chance, source = random.Random(seed), taskset(section_of(section))
    tasks, environment = source.tasks(), source.environment()
    opening = environment.reset(tasks[-1])
    environment.step(world.choose(opening, opening, chance))
    resets, stepping, count = list[float](), 0.0, 0
    for task in chance.sample(tasks, min(world.tasks, len(tasks))):
        opening, seconds = timed(environment.reset, task)
        resets.append(seconds)
        seen = opening
        for _ in range(steps):
            if not seen.over:
                seen, seconds = timed(environment.step, world.choose(opening, seen, chance), clock=world.clock)
                stepping, count = stepping + seconds, count + 1
    return Speed(statistics.median(resets) * 1000, count / stepping)


class Comparison(NamedTuple):
    """Figures of one round of the stock wrapper and ours on the same games."""

    stock: Speed
    ours: Speed
    ours_cached: float  # CPU ms to the next game if it was played before.
    compared: int
    different: int


def compare(environment: Any, section: dict[str, Any], steps: int, seed: int) -> Comparison:
    """Play the next games at random with the stock wrapper, and replay each game and its actions with ours."""
    source, chance = taskset(section_of(section)), random.Random(seed)
    ours, tasks = source.environment(), {task.id: task for task in source.tasks()}
    resets: tuple[list[float], list[float], list[float]] = ([], [], [])
    stepping, count, compared, different = [0.0, 0.0], 0, 0, 0
    for _ in range(STOCK_GAMES):
        game, theirs, actions, taken = play_stock(environment, chance, steps)
        resets[0].append(taken[0])
        stepping[0] += sum(taken[1:])
        mine, taken = replay(ours, tasks[game], actions)
        resets[1].append(taken[0])
        stepping[1] += sum(taken[1:])
        resets[2].append(replay(source.environment(), tasks[game], ())[1][0])
        different += sum(own != other for own, other in zip(mine, theirs, strict=True))
        count, compared = count + len(actions), compared + len(mine)
    stock, fresh, cached = (statistics.median(seconds) * 1000 for seconds in resets)
    return Comparison(Speed(stock, count / stepping[0]), Speed(fresh, count / stepping[1]), cached, compared, different)


def play_stock(environment: Any, chance: random.Random, steps: int) -> tuple[str, list[Answer], list[str], list[float]]:
    """Play the stock wrapper's next game; return its id, answers, actions, and the CPU seconds of reset and steps."""
    (observations, infos), seconds = timed(environment.reset)
    taken, actions, game = [seconds], list[str](), "/".join(infos["extra.gamefile"][0].split("/")[-3:-1])
    # Ours omits the banner, and offers no commands once a game is won.
    answers: list[Answer] = [(observations[0].partition("\n\n")[2], tuple(infos["admissible_commands"][0]), False)]
    while len(actions) < steps and not answers[-1][2]:
        actions.append(chance.choice((*infos["admissible_commands"][0], SPURIOUS)))
        (observations, _, _, infos), seconds = timed(environment.step, [actions[-1]])
        taken.append(seconds)
        won = bool(infos["won"][0])
        answers.append((observations[0], () if won else tuple(infos["admissible_commands"][0]), won))
    return game, answers, actions, taken


def replay(environment: Environment, task: Task, actions: Sequence[str]) -> tuple[list[Answer], list[float]]:
    """Return our answers to a reset and these actions, and the CPU seconds of each."""
    answers, taken = list[Answer](), list[float]()
    for action in (None, *actions):
        seen, seconds = timed(environment.reset, task) if action is None else timed(environment.step, action)
        taken.append(seconds)
        answers.append((seen.observation, seen.choices, seen.success))
    return answers, taken


@contextlib.contextmanager
def unpacked(data: Path) -> Iterator[Path]:
    """Unpack the split as a tree of files that both can read. Raises MissingInput."""
    pack = data / f"{SPLIT}.tar.zst"
    if trees := sorted(data.glob(f"json_*/{SPLIT}")):
        yield trees[-1]
        return
    if not pack.is_file():
        raise MissingInput(f"no games of ALFWorld's {SPLIT} in {str(data)!r}.")
    with tempfile.TemporaryDirectory() as folder:
        decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
        with (
            pack.open("rb") as file,
            decompressor.stream_reader(file) as whole,
            tarfile.open(fileobj=whole, mode="r|") as tree,
        ):
            tree.extractall(folder, filter="data")
        (split_folder,) = Path(folder).rglob(SPLIT)
        yield split_folder


def against_stock(data: Path, rounds: int, steps: int, cache: Path) -> None:
    """Print the figures of both, round by round, and the ratios of their medians. Raises MissingInput."""
    with unpacked(data) as split:
        section = {"name": "alfworld", "split": SPLIT, "data": str(split.parent), "max_steps": steps + 1}
        environment = stock_environment(str(split))
        starts, played = list[tuple[float, ...]](), list[Comparison]()
        theirs = json.dumps(stock_config(str(split)))
        in_fresh_process(STOCK, cache, theirs)
        for number in range(rounds):
            whole, imported, game = in_fresh_process(STOCK, cache, theirs)
            starts.append((whole, imported, *ready(section, cache, game)[1:]))
            played.append(compare(environment, section, steps, number))
            latest = played[-1]
            print(
                f"round {number}, stock | ours: ready {starts[-1][0]:.0f} | {starts[-1][2]:.0f} ms, once imported "
                f"{starts[-1][1]:.0f} | {starts[-1][3]:.0f} ms, "
                f"next game {latest.stock.next_task:.0f} | {latest.ours.next_task:.1f} ms, cached "
                f"{latest.ours_cached:.1f} ms, {latest.stock.steps:.1f} | {latest.ours.steps:.0f} steps/s",
                flush=True,
            )
    different, compared = sum(c.different for c in played), sum(c.compared for c in played)
    print(f"answers that differ       {different} of {compared}")
    ratio("process ready, cached", [start[0] for start in starts], [start[2] for start in starts])
    ratio("ready, imported, cached", [start[1] for start in starts], [start[3] for start in starts])
    ratio(
        "next game, never seen",
        [comparison.stock.next_task for comparison in played],
        [comparison.ours.next_task for comparison in played],
    )
    ratio(
        "next game, once cached",
        [comparison.stock.next_task for comparison in played],
        [comparison.ours_cached for comparison in played],
    )
    ratio(
        "steps/s", [comparison.ours.steps for comparison in played], [comparison.stock.steps for comparison in played]
    )


def ratio(what: str, more: Sequence[float], less: Sequence[float]) -> None:
    each = ", ".join(f"{numerator / denominator:.1f}" for numerator, denominator in zip(more, less, strict=True))
    print(f"{what:25} {statistics.median(more) / statistics.median(less):7.1f} times the stock wrapper ({each})")


def table(worlds: Sequence[World], data: Path, rounds: int, steps: int, cache: Path) -> None:
    """Print a line for each environment; each round visits all of them, so all see the same machine load."""
    starts, speeds, skipped = dict[str, list[tuple[float, float, float]]](), dict[str, list[Speed]](), dict[str, str]()
    for number in range(rounds):
        for world in worlds:
            folder = {"data": str(data / world.folder)} if world.folder else {}
            try:
                taskset(section_of(world.section | folder)).tasks()
                if number == 0:  # Creates the byte code.
                    ready(world.section | folder, cache)
                with tempfile.TemporaryDirectory(dir=cache) as empty:
                    starts.setdefault(world.name, []).append(ready(world.section | folder, Path(empty)))
                speeds.setdefault(world.name, []).append(play(world, world.section | folder, steps, number))
            except RetroformerError as error:
                skipped[world.name] = str(error)
    print(f"{'CPU ms':20} {'ready first':>11} {'cached':>8} {'imported':>9} {'next task':>10} {'steps/s':>9}")
    for name, times in starts.items():
        first, cached, imported = (statistics.median(values) for values in zip(*times, strict=True))
        next_task, rate = (statistics.median(values) for values in zip(*speeds[name], strict=True))
        print(f"{name:20} {first:11.0f} {cached:8.0f} {imported:9.0f} {next_task:10.1f} {rate:9.1f}")
    print(*(f"{name:20} skipped: {why}\n" for name, why in skipped.items()), sep="", end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RETROFORMER_DATA", "../shared/data"))
    parser.add_argument("--only", nargs="+", choices=(*(world.name for world in WORLDS), "stock"), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="of each game, at most")
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"RETROFORMER_CACHE": cache, "ALFWORLD_DATA": cache}
        if worlds := [world for world in WORLDS if not chosen.only or world.name in chosen.only]:
            table(worlds, chosen.data, chosen.rounds, chosen.steps, Path(cache))
        if not chosen.only or "stock" in chosen.only:
            try:
                against_stock(chosen.data / "alfworld", chosen.rounds, chosen.steps, Path(cache))
            except MissingInput as error:
                print(f"Beside the stock wrapper   skipped: {error}")


if __name__ == "__main__":
    main()

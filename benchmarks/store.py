"""Time and memory of every question to a large store: python benchmarks/store.py [--attempts N ...] [--folder DIR].

Seconds of CPU time and peak memory of every question to a store of so many attempts, each in a process of its own:
a resumed collect with nothing to do, its closing summary, --dry-run, preference pairs, SFT texts, the Parquet export,
and eval's probe prompt. The attempts are real ones of the rule-based actor, copied under other task ids. The baseline
is one pass through all facts as whole records, measured in the same run; the last column says how many times faster
than that a question is answered. The resumed collect also prints the longest time that the event loop stood still.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from retroformer.assembly import Page, parts
from retroformer.config import Experiment
from retroformer.config_file import load
from retroformer.records import Task

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "demo.yaml"
MOST_SEEDS = 150
"""Tasks that are played; the others are copies of them."""
RUN = "copies"


def config(store: str) -> Experiment:
    words = (f"run={RUN}", f"store={store}", "loop.trials=3", "collect.candidates=2", "collect.tokens=1000000000")
    return load(CONFIG, words)


async def play_seeds(store_url: str, seeds: int) -> None:
    """Collect real facts, with advice written by rule in place of a model's."""
    from retroformer.experience import Budget, Experience
    from retroformer.ledger import Ledger
    from retroformer.prompts import reflection_renderer
    from retroformer.reflectors.rule import MixedReflector
    from retroformer.schedule import Work, work_through
    from retroformer.store import open_store

    experiment = config(store_url)
    tasks = seed_tasks(experiment, seeds)
    page = Page(CONFIG, (), experiment)
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
        async with parts(page, asks_reflector=False) as made:
            agent = made.agent(MixedReflector(reflection_renderer(experiment)))
            budget = Budget(experiment.collect, lambda: store.usage("collect"))
            slots = asyncio.Semaphore(8)
            experience = Experience(
                ledger, "collect", made.pool, agent, experiment.loop, experiment.seed, budget, slots=slots
            )
            await work_through(ledger, [Work(experience, tasks, 2)], 8, lambda attempts, count: None)


def seed_tasks(experiment: Experiment, seeds: int) -> tuple[Task, ...]:
    from retroformer.assembly import chosen_tasks

    return chosen_tasks(experiment, seeds)


def copy_to(url: str, attempts: int) -> int:
    """Copy the played facts under other task ids until there are so many attempts; the number of copies."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        played = connection.execute(
            sa.text("select count(*) from trajectories where task_id not like '%#%'")
        ).scalar_one()
        held = connection.execute(sa.text("select count(*) from trajectories")).scalar_one()
        copies = max(1, round(attempts / played))
        for table in ("trajectories", "reflections") if held == played else ():
            columns = [column["name"] for column in sa.inspect(connection).get_columns(table)]
            connection.execute(sa.text(f"create temp table seed_{table} as select * from {table}"))
            chosen = ", ".join("task_id || '#' || :number" if name == "task_id" else name for name in columns)
            statement = sa.text(f"insert into {table} ({', '.join(columns)}) select {chosen} from seed_{table}")
            for number in range(1, copies):
                connection.execute(statement, {"number": f"{number:06}"})
            connection.commit()
        connection.execute(sa.text("analyze"))
        connection.commit()
    engine.dispose()
    return copies


def copied_tasks(experiment: Experiment, seeds: int, copies: int) -> tuple[Task, ...]:
    played = seed_tasks(experiment, seeds)
    others = (t.model_copy(update={"id": f"{t.id}#{number:06}"}) for number in range(1, copies) for t in played)
    return (*played, *others)


# The questions. Each gets the config and the tasks.


def whole_records(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    """The baseline."""
    from retroformer.store import open_store

    with closing(open_store(experiment)) as store:
        attempts = sum(1 for _ in store.stream_trajectories("collect"))
        return attempts, sum(1 for _ in store.stream_reflections("collect"))


def resumed_collect(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    """Nothing is left to do; the longest pause of the event loop in milliseconds."""
    from retroformer.experience import Budget, Experience
    from retroformer.ledger import Ledger
    from retroformer.protocols import Agent
    from retroformer.reflectors.baseline import NoReflector
    from retroformer.schedule import Work, work_through
    from retroformer.store import open_store

    async def resume() -> float:
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.001)
                longest = max(longest, time.perf_counter() - before - 0.001)

        watching = asyncio.create_task(watch())
        with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
            budget = Budget(experiment.collect, lambda: store.usage("collect"))
            agent = Agent(None, NoReflector())  # type: ignore[arg-type]
            slots = asyncio.Semaphore(8)
            experience = Experience(
                ledger,
                "collect",
                None,
                agent,
                experiment.loop,
                experiment.seed,
                budget,
                slots=slots,  # type: ignore[arg-type]
            )
            await work_through(ledger, [Work(experience, tasks, 2)], 8, lambda attempts, count: None)
        watching.cancel()
        return longest * 1000

    return f"longest pause of the event loop {asyncio.run(resume()):.0f} ms"


def summary(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    from collect.rate import summary as summary_of
    from retroformer.store import open_store

    with closing(open_store(experiment)) as store:
        return summary_of(store, "collect", tasks)


def dry_run(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    from collect.plan import _stored

    return _stored(experiment) is None


def pairs(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    from retroformer.rating import preference_pairs
    from retroformer.store import open_store

    with closing(open_store(experiment)) as store:
        return deque(preference_pairs(store, "collect"), maxlen=1)


def sft_texts(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    from train.inputs import positive_reflections

    return len(positive_reflections(experiment))


def export(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    from retroformer.parquet import export_run

    with tempfile.TemporaryDirectory() as folder:
        return export_run(experiment, Path(folder))


def probe(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    from eval.verify import _probe_prompt
    from retroformer.store import open_store

    with closing(open_store(experiment)) as store:
        return _probe_prompt(store)


QUESTIONS: dict[str, Callable[[Experiment, tuple[Task, ...]], object]] = {
    "whole records": whole_records,
    "resumed collect": resumed_collect,
    "summary": summary,
    "dry run": dry_run,
    "pairs": pairs,
    "SFT texts": sft_texts,
    "export": export,
    "probe": probe,
}


def ask(question: str, store_url: str, seeds: int, copies: int) -> None:
    """Answer one question in this process, and print what it took as JSON."""
    experiment = config(store_url)
    needs_tasks = question in ("resumed collect", "summary")
    tasks = copied_tasks(experiment, seeds, copies) if needs_tasks else ()
    cpu, clock = time.process_time(), time.perf_counter()
    answer = QUESTIONS[question](experiment, tasks)
    took = {"cpu": time.process_time() - cpu, "seconds": time.perf_counter() - clock, "answer": str(answer)[:200]}
    print(json.dumps(took | {"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("--attempts", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--ask", nargs=4, metavar=("QUESTION", "STORE", "SEEDS", "COPIES"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where the stores are made, and kept")
    chosen = parser.parse_args(arguments)
    if chosen.ask:
        ask(chosen.ask[0], chosen.ask[1], int(chosen.ask[2]), int(chosen.ask[3]))
        return
    folder = chosen.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{'attempts':>9}  {'question':16} {'CPU s':>8} {'seconds':>8} {'MiB':>7} {'ratio':>7}")
    for attempts in chosen.attempts:
        url = f"sqlite:///{folder}/{attempts}.db"
        seeds = min(MOST_SEEDS, max(1, attempts // 4))
        if not (folder / f"{attempts}.db").exists():
            asyncio.run(play_seeds(url, seeds))
        copies, baseline = copy_to(url, attempts), 0.0
        for question in QUESTIONS:
            command = [sys.executable, __file__, "--ask", question, url, str(seeds), str(copies)]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
            if done.returncode:
                sys.exit(done.stderr)
            took = json.loads(done.stdout.splitlines()[-1])
            baseline = baseline or took["cpu"]
            note = took["answer"] if question == "resumed collect" else ""
            figures = f"{took['cpu']:8.2f} {took['seconds']:8.2f} {took['mib']:7.0f} {baseline / took['cpu']:7.1f}"
            print(f"{attempts:9}  {question:16} {figures}  {note}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

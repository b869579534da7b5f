"""Time and memory of each query to a large store: python benchmarks/store.py [--attempts N ...].

Measures CPU seconds and peak memory of each query to a store of N attempts, each in a separate process:
a resumed collect with nothing to do, its closing summary, --dry-run, preference pairs, SFT texts, the Parquet export,
eval's probe prompt, and the report on an evaluation of four arms, which has a store of its own. The attempts are real
ones of the rule-based actor, copied under other task ids. The baseline is one pass through all facts as whole records,
measured in the same run; the last column gives the speed-up of a query over it. The resumed collect also prints the
longest pause of the event loop.
"""

import argparse
import asyncio
import contextlib
import io
import resource
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from collect.rate import summary as summary_of
from retroformer.agents.arms.baselines import NoReflector
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config, load
from retroformer.config.parts import Parts, chosen_tasks, parts, reflection_renderer
from retroformer.environments.alfworld.advice_writer import lesson_reflector
from retroformer.environments.extras import LessonParts
from retroformer.method.protocols import Reflector
from retroformer.method.rating import preference_pairs
from retroformer.method.records import Task
from retroformer.run.ledger import Ledger
from retroformer.run.schedule import Work, work_through
from retroformer.run.store import open_store
from retroformer.run.store.damage import checksum
from retroformer.run.store.schema import ACCOUNTS, CHECKSUM, REFLECTIONS, TRAJECTORIES, USAGE

CONFIG = Path(__file__).parents[1] / "configs" / "demo.yaml"
MOST_SEEDS = 150
"""Most tasks that are played; the others are copies of them."""
ARMS = "{retry: {kind: none}, phrase: {kind: phrase}, rule: {kind: rule}, placebo: {kind: placebo, of: rule}}"


def config(store: str) -> Experiment:
    words = ("run=copies", f"store={store}", "loop.trials=3", "loop.concurrency=8", "collect.candidates=2")
    return load(CONFIG, (*words, f"eval.arms={ARMS}", "eval.examples=null"))


def play_evaluation(experiment: Experiment, seeds: int) -> None:
    """Play the four arms on real tasks; the report on them is not timed."""
    from eval.report.report import compare_arms

    chosen = experiment.model_copy(update={"eval": experiment.eval.model_copy(update={"tasks": seeds})})
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        asyncio.run(compare_arms(Config(CONFIG, (), chosen)))


async def play_seeds(store_url: str, seeds: int) -> None:
    """Collect real facts, with advice written by rule instead of by a model."""
    experiment = config(store_url)
    loaded = Config(CONFIG, (), experiment)
    async with parts(loaded, asks_reflector=False) as components:
        lessons = LessonParts(experiment.environment, reflection_renderer(experiment), reads_history=False)
        await collect(components, lesson_reflector("mixed", lessons), chosen_tasks(experiment, seeds, ("train",)))


async def collect(components: Parts, reflector: Reflector, tasks: tuple[Task, ...]) -> None:
    """Work through these tasks as `retroformer collect` does."""
    experiment = components.experiment
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
        experience = components.experience(ledger, "collect", reflector, experiment.collect)
        await work_through(ledger, [Work(experience, tasks)], experiment.loop.concurrency, lambda attempts, count: None)


def copy_to(url: str, attempts: int) -> int:
    """Copy the played facts under other task ids up to this number of attempts; return the number of copies."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        played = connection.execute(sa.select(sa.func.count()).select_from(TRAJECTORIES)).scalar_one()
        copies = max(1, round(attempts / played))
        for table in (TRAJECTORIES, REFLECTIONS):
            seeds = connection.execute(sa.select(table)).mappings().all()
            for number in range(1, copies if seeds else 1):
                rows = [{**seed, "task_id": f"{seed['task_id']}#{number:06}"} for seed in seeds]
                connection.execute(table.insert(), [row | {CHECKSUM: checksum(row)} for row in rows])
        connection.execute(ACCOUNTS.update().values({name: ACCOUNTS.c[name] * copies for name in USAGE}))
        connection.execute(sa.text("analyze"))
    engine.dispose()
    return copies


def copied_tasks(experiment: Experiment, seeds: int, copies: int, split: str) -> tuple[Task, ...]:
    played = chosen_tasks(experiment, seeds, (split,))
    others = (t.model_copy(update={"id": f"{t.id}#{number:06}"}) for number in range(1, copies) for t in played)
    return (*played, *others)


# The queries. Each gets the config and the tasks.


def whole_records(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    with closing(open_store(experiment)) as store:
        attempts = sum(1 for _ in store.stream_trajectories("collect"))
        return attempts, sum(1 for _ in store.stream_reflections("collect"))


def resumed_collect(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    """Resume a finished collect; return the longest pause of the event loop in milliseconds."""

    async def resume() -> float:
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.001)
                longest = max(longest, time.perf_counter() - before - 0.001)

        watching = asyncio.create_task(watch())
        nothing: Any = None  # Nothing is played.
        await collect(Parts(nothing, nothing, nothing, nothing, experiment, {}), NoReflector(), tasks)
        watching.cancel()
        return longest * 1000

    return f"longest pause of the event loop {asyncio.run(resume()):.0f} ms"


def summary(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    with closing(open_store(experiment)) as store:
        return summary_of(store, "collect", tasks, experiment)


def dry_run(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    with closing(open_store(experiment)) as store:
        return store.arm_counts()["collect"], store.mean_tokens("collect")


def pairs(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    with closing(open_store(experiment)) as store:
        return deque(preference_pairs(store, "collect"), maxlen=1)


def sft_texts(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    from train.data.inputs import positive_reflections

    return len(positive_reflections(experiment))


def export(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    from retroformer.cases.export_cases import export_cases

    with tempfile.TemporaryDirectory() as folder:
        return export_cases(experiment, Path(folder) / "all.parquet", exact=True)


def probe(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    from eval.play.verify import _probe_prompt

    with closing(open_store(experiment)) as store:
        return _probe_prompt(store)


def report(experiment: Experiment, tasks: tuple[Task, ...]) -> object:
    from eval.measure.results import arm_results
    from eval.measure.statistics import Rates
    from eval.report.report import write_report
    from eval.report.report_input import ReportInput

    arms = {name: [f"eval/{name}"] for name in experiment.eval.arms}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), closing(open_store(experiment)) as store:
        results = arm_results(store, tasks, arms, experiment.loop.trials)
        assert not any(arm.incomplete for arm in results), "the copies are incomplete"
        return write_report(ReportInput(experiment, tasks, Rates(results), (), store))


QUESTIONS: dict[str, Callable[[Experiment, tuple[Task, ...]], object]] = {
    "whole records": whole_records,
    "resumed collect": resumed_collect,
    "summary": summary,
    "dry run": dry_run,
    "pairs": pairs,
    "SFT texts": sft_texts,
    "export": export,
    "probe": probe,
    "report": report,
}
TASKS_FROM = {"resumed collect": "train", "summary": "train", "report": "held_out"}
"""Split of the tasks that a query needs."""


def ask(question: str, store_url: str, seeds: int, copies: int) -> dict[str, Any]:
    """Run one query in this process and return its cost."""
    experiment = config(store_url)
    with contextlib.redirect_stderr(io.StringIO()):  # Progress and warnings would stand within the table.
        if question == "play":
            play_evaluation(experiment, seeds)
        tasks = copied_tasks(experiment, seeds, copies, TASKS_FROM[question]) if question in TASKS_FROM else ()
        cpu, clock = time.process_time(), time.perf_counter()
        answer = QUESTIONS[question](experiment, tasks) if question in QUESTIONS else None
    took = {"cpu": time.process_time() - cpu, "seconds": time.perf_counter() - clock, "answer": str(answer)[:200]}
    return took | {"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def run_query(*query: Any) -> dict[str, Any]:
    """Return what `ask` returns in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(ask, *query).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("--attempts", type=int, nargs="+", default=[100, 1000, 10_000])
    chosen = parser.parse_args()
    print(f"{'attempts':>9}  {'question':16} {'CPU s':>8} {'seconds':>8} {'MiB':>7} {'ratio':>7}")
    for attempts in chosen.attempts:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), attempts)


def measure(folder: Path, attempts: int) -> None:
    """Print the cost of each query to stores of this size, which are made in `folder`."""
    url, of_report = (f"sqlite:///{folder}/{name}.db" for name in ("collect", "report"))
    seeds = min(MOST_SEEDS, max(1, attempts // 4))
    asyncio.run(play_seeds(url, seeds))
    held_out = min(MOST_SEEDS, max(2, attempts // 8))
    run_query("play", of_report, held_out, 1)
    copies, baseline = copy_to(url, attempts), 0.0
    copies_of_report = copy_to(of_report, attempts)
    for question in QUESTIONS:
        if question == "report":
            url, seeds, copies = of_report, held_out, copies_of_report
        took = run_query(question, url, seeds, copies)
        baseline = baseline or took["cpu"]
        note = took["answer"] if question == "resumed collect" else ""
        figures = f"{took['cpu']:8.2f} {took['seconds']:8.2f} {took['mib']:7.0f} {baseline / took['cpu']:7.1f}"
        print(f"{attempts:9}  {question:16} {figures}  {note}", flush=True)


if __name__ == "__main__":
    main()

"""Recompute the recorded runs of Reflexion from their logs, beside the numbers that the paper prints.

    python -m benchmarks.recorded PATH/reflexion_logs.jsonl.xz > docs/results/recorded.md

The file has one log per line, {"path": ..., "text": ...}, as in Reflexion's repository. Answers to HotPotQA are judged
again by our exact match; games and shopping sessions by the recorded verdict, as these logs have no trajectories.
"""

import argparse
import json
import lzma
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from eval.report.markdown import table_lines
from retroformer.environments.hotpotqa.metrics import exact_match

TRIAL = re.compile(r"^BEGIN TRIAL \d+[ \t]*$", re.MULTILINE)
SUMMARY = re.compile(r"Correct: (\d+)")
GOLD = re.compile(r"^Correct answer:(.*)$", re.MULTILINE)
ANSWER = re.compile(r"^Action(?: \d+)?: ?Finish\[(.*?)\]\s*$", re.MULTILINE)
QUESTION = re.compile(r"Question:(.*?)(?:You have attempted.*)?$", re.MULTILINE)


class Run(NamedTuple):
    """A recorded run, and what the paper prints about it."""

    title: str
    log: str
    """Path of the log, or of the folder with a log per trial."""
    trials: int
    """Number of trials in the paper."""
    where: str
    """Table, figure or section of the paper."""
    first: float | None = None
    """Share solved at the first trial, as printed; None if the paper has only a curve."""
    last: float | None = None
    """Share solved by the last trial, as printed."""


class Curve(NamedTuple):
    """Number of tasks solved by each trial."""

    tasks: int
    solved: tuple[int, ...]
    noted: tuple[int, ...]
    """The same numbers as the log itself sums them up."""


COT, REACT = "hotpotqa_runs/root/CoT/", "hotpotqa_runs/root/ReAct/"
RUNS = (
    Run("HotPotQA, ReAct", f"{REACT}base/100_questions_5_trials.txt", 5, "Fig. 4a"),
    Run("HotPotQA, ReAct + Reflexion", f"{REACT}reflexion/100_questions_7_trials.txt", 7, "Table 5", 0.30, 0.55),
    Run("HotPotQA, CoT", f"{COT}no_context/base/100_questions_5_trials.txt", 5, "Fig. 4a"),
    Run("HotPotQA, CoT + Reflexion", f"{COT}no_context/reflexion/100_questions_5_trials.txt", 5, "Fig. 4a"),
    Run("HotPotQA, CoT (GT) + last attempt", f"{COT}context/last_trial/100_questions_8_trials.txt", 5, "Fig. 4c"),
    Run(
        "HotPotQA, CoT (GT) + Reflexion", f"{COT}context/reflexion/100_questions_8_trials.txt", 8, "Table 5", 0.60, 0.77
    ),
    Run("ALFWorld, ReAct", "alfworld_runs/root/base_run_logs", 7, "Fig. 3a"),
    Run("ALFWorld, ReAct + Reflexion", "alfworld_runs/root/reflexion_run_logs", 12, "section 4.1", None, 130 / 134),
    Run("WebShop, ReAct", "webshop_runs/base_run_logs_2", 4, "Fig. 6"),
    Run("WebShop, ReAct + Reflexion", "webshop_runs/reflexion_run_logs_1", 4, "Fig. 6"),
)


def curve_of_answers(log: str) -> Curve:
    """Judge every answer in a log of HotPotQA; a question counts from the trial of its first right answer on."""
    solved, questions = set[str](), set[str]()
    counts = []
    _, *trials = TRIAL.split(log)
    for trial in trials:
        pieces = GOLD.split(trial)
        for record, gold in zip(pieces[:-1:2], pieces[1::2], strict=True):
            question = " ".join(QUESTION.findall(record)[-1].split())
            questions.add(question)
            if any(exact_match(answer, gold.strip()) for answer in ANSWER.findall(record)):
                solved.add(question)
        counts.append(len(solved))
    noted = tuple(int(SUMMARY.findall(trial)[0]) for trial in trials)
    return Curve(len(questions), tuple(counts), noted)


def curve_of_verdicts(logs: Mapping[str, str], folder: str) -> Curve:
    """Count the recorded verdicts of a folder with a JSON log per trial."""
    paths = sorted((path for path in logs if path.startswith(f"{folder}/")), key=_trial)
    verdicts = [[task["is_success"] for task in json.loads(logs[path])] for path in paths]
    solved = tuple(sum(trial) for trial in verdicts)
    return Curve(len(verdicts[0]), solved, solved)


def curves(logs: Mapping[str, str]) -> Iterator[tuple[Run, Curve]]:
    """Yield each run with its recomputed curve, cut to the number of trials in the paper."""
    for run in RUNS:
        curve = curve_of_answers(logs[run.log]) if run.log in logs else curve_of_verdicts(logs, run.log)
        yield run, Curve(curve.tasks, curve.solved[: run.trials], curve.noted[: run.trials])


def report(logs: Mapping[str, str]) -> str:
    header = ["run", "tasks", "solved by trial", "first", "last", "in the paper", "printed", "last - printed"]
    rows = [
        [
            run.title,
            str(curve.tasks),
            " ".join(map(str, curve.solved)),
            f"{curve.solved[0] / curve.tasks:.3f}",
            f"{curve.solved[-1] / curve.tasks:.3f}",
            run.where,
            " to ".join(f"{share:.2f}" for share in (run.first, run.last) if share is not None) or "a curve",
            "-" if run.last is None else f"{curve.solved[-1] / curve.tasks - run.last:+.3f}",
        ]
        for run, curve in curves(logs)
    ]
    return f"{HEAD}\n{table_lines(header, rows)}"


def read(path: Path) -> dict[str, str]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return {row["path"]: row["text"] for row in map(json.loads, lines)}


def _trial(path: str) -> int:
    return int(path.rpartition("_")[2].removesuffix(".json"))


HEAD = """# The recorded runs of Reflexion, recomputed

Reflexion (NeurIPS 2023) published the logs of its own runs. This page counts them again: answers to HotPotQA are judged
by this project's exact match, games of ALFWorld and sessions of WebShop by the recorded verdict, since their logs have
no trajectories. A question counts as solved from the trial of its first right answer on. Figures of the paper without
printed numbers are named, but nothing is read off a curve.

The page is the output of

    python -m benchmarks.recorded PATH/reflexion_logs.jsonl.xz
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path)
    print(report(read(parser.parse_args().logs)), end="")

"""What an evaluation says about training that did not help, from stored facts of each reason."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from eval.measure.results import arm_results
from eval.measure.statistics import Rates
from eval.report.conclusion import next_command, spoken
from eval.report.files import read_report
from eval.report.report import write_report
from eval.report.report_input import ReportInput
from retroformer.config.file import load
from retroformer.files.document import Report
from retroformer.method.records import Key, Outcome, Step, Task
from retroformer.run.arm_names import COLLECT, FIRST_TRIAL
from retroformer.run.store import Store
from tests.support.characters import advice, attempt_at, task
from tests.support.facts import add_trajectory

CONFIG = """
run: riddles
environment: {name: agent}
loop: {trials: 2}
reflector: {max_new_tokens: 40, teacher: {base_url: "http://127.0.0.1:1/v1", model: strong}}
eval:
  arms:
    no advice: {kind: none}
    base model: {kind: model, model: base}
    tuned {v2}: {kind: model, model: sft}
    teacher: {kind: teacher}
"""
TASKS = [task(f"held out {number}") for number in range(12)]


class Facts(NamedTuple):
    """Facts of a run whose 12 held-out tasks fail at first."""

    solved: int = 0
    """Tasks that a retry with trained advice solves."""
    taught: int = 0
    """Tasks that a retry with the teacher's advice solves."""
    is_cut: bool = False
    is_ignored: bool = False
    collected: Sequence[Sequence[float]] = ()
    """Ratings of the candidates on each failure."""


_PLAIN = Facts()


def evaluate(facts: Facts) -> Report:
    Path("riddles.yaml").write_text(CONFIG)
    experiment = load(Path("riddles.yaml"))
    with closing(Store(experiment.store_url, experiment.run)) as store:
        for number, rated in enumerate(facts.collected):
            _retry(store, COLLECT, task(f"train-{number}"), rated)
        arms = experiment.eval.stored_names
        for name in (FIRST_TRIAL, COLLECT, *(each for names in arms.values() for each in names)):
            store.declare(name, {})
        for number, subject in enumerate(TASKS):
            add_trajectory(store, Key(arm=FIRST_TRIAL, task_id=subject.id), attempt_at(subject))
            for name in ("eval/no advice", "eval/base model"):
                _retry(store, name, subject, [0.0], first=False)
            _retry(store, "eval/tuned {v2}", subject, [float(number < facts.solved)], facts, first=False)
            _retry(store, "eval/teacher", subject, [float(number < facts.taught)], first=False)
        results = arm_results(store, TASKS, arms, experiment.loop.trials)
        path = write_report(ReportInput(experiment, TASKS, Rates(results), (), store))
    return read_report(path.parent)


def _retry(
    store: Store, arm: str, subject: Task, rated: Sequence[float], facts: Facts = _PLAIN, *, first: bool = True
) -> None:
    if first:
        add_trajectory(store, Key(arm=arm, task_id=subject.id), attempt_at(subject))
    for candidate, rating in enumerate(rated):
        key = Key(arm=arm, task_id=subject.id, trial=1, candidate=candidate)
        if arm != "eval/no advice":
            reason = "length" if facts.is_cut else "stop"
            store.add_reflection(key, 0, advice(f"Say {candidate}.").model_copy(update={"finish_reason": reason}))
        outcome = Outcome.SUCCESS if rating == 1 else Outcome.FAILURE
        said = "answer 0" if facts.is_ignored else "think again"
        step = Step(action=said, observation="Noted.", reward=rating)
        add_trajectory(store, key, attempt_at(subject, (rating,), outcome).model_copy(update={"steps": (step,)}))


MIXED, ALIKE, VAIN = (1.0, 0.0), (1.0, 1.0), (0.0, 0.0)
SHOW = "see retroformer show runs/riddles --arm "


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            Facts(is_cut=True, collected=[MIXED] * 20),
            "Most likely the advice is cut, and a new run needs more tokens: 12 of its 12 pieces of advice were cut at "
            f"reflector.max_new_tokens=40: {SHOW}'eval/tuned {{v2}}'.",
        ),
        (
            Facts(is_ignored=True, collected=[MIXED] * 20),
            "Most likely the agent ignores advice: 12 of 12 retries repeated the failed attempt action by action: "
            f"{SHOW}'eval/tuned {{v2}}' --task 'held out 0'.",
        ),
        # An adapter of another run: this one has collected nothing.
        (
            Facts(is_ignored=True),
            "Most likely the agent ignores advice: 12 of 12 retries repeated the failed attempt action by action: "
            f"{SHOW}'eval/tuned {{v2}}' --task 'held out 0'.",
        ),
        (
            Facts(is_cut=True, collected=(MIXED, *[VAIN] * 5)),
            "Most likely there is too little to imitate: 1 of 12 collected pieces of advice helped, and a stronger "
            f"model that writes while collecting (reflector.teacher) gives more: {SHOW}collect.",
        ),
        (
            Facts(is_cut=True, collected=(*[MIXED] * 20, *[VAIN] * 100)),
            "Most likely there is too little to imitate: 20 of 240 collected pieces of advice helped, and a stronger "
            f"model that writes while collecting (reflector.teacher) gives more: {SHOW}collect.",
        ),
        (
            Facts(collected=(MIXED, *[ALIKE] * 10)),
            "Most likely ratings do not tell good advice from bad: on 10 of 11 failures that advice helped, all "
            f"candidates helped alike: {SHOW}collect.",
        ),
        (
            Facts(collected=[MIXED] * 20, taught=6),
            "Most likely it does not write as its teacher does yet (50% against 0% of tasks), and more collect.tasks "
            f"or train.sft.epochs, or `train dpo` on these ratings, may help: {SHOW}'eval/tuned {{v2}}'.",
        ),
        (
            Facts(collected=[MIXED] * 20),
            "The usual reasons do not apply, and 12 tasks show large differences alone: see retroformer view "
            "runs/riddles.",
        ),
    ],
)
def test_an_evaluation_names_what_training_lacked_and_the_command_that_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: Facts, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    report = evaluate(facts)
    start = "The data do not show that the advice of tuned {v2} is better than without training. "
    first, last = spoken(report, load(Path("riddles.yaml")))
    assert last == start + said
    assert first.startswith(
        "The data do not show a difference between tuned {v2} (0.0% of 12 tasks within 2 attempts) and"
    )
    command = next_command(report, load(Path("riddles.yaml")), Path("riddles.yaml"), ())
    assert f"see {command}." in last


def test_an_evaluation_of_training_that_helped_goes_on_to_its_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = evaluate(Facts(solved=9, is_cut=True))
    (line,) = spoken(report, load(Path("riddles.yaml")))
    assert line.startswith("tuned {v2} solves 75.0% of 12 tasks within 2 attempts, 75.0 points more than base model (")
    command = next_command(report, load(Path("riddles.yaml")), Path("riddles.yaml"), ["run=riddles"])
    assert command == "retroformer promote riddles.yaml sft run=riddles"

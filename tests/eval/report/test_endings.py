"""Endings and the agent's judgements, on a few attempts worked by hand."""

from pathlib import Path

from eval.measure.results import arm_results
from eval.report.attempts import AttemptGroups
from eval.report.report_input import facts_by_task
from retroformer.method.records import Key, Outcome
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.store import Store
from tests.support.characters import attempt_at, task
from tests.support.evaluations import evaluated
from tests.support.facts import add_trajectory
from tests.support.markdown_tables import markdown, tables_in


def counted(folder: Path, *attempts: tuple[bool, bool | None]) -> AttemptGroups:
    """Return the counts of one arm: the agent judges first attempts as failed; each retry is (solved, judged)."""
    store = Store(f"sqlite:///{folder / 'experience.db'}", "riddles")
    tasks = [task(str(number)) for number in range(len(attempts))]
    for riddle, (solved, judged) in zip(tasks, attempts, strict=True):
        first = attempt_at(riddle).model_copy(update={"judged": None if judged is None else False})
        add_trajectory(store, Key(arm=FIRST_TRIAL, task_id=riddle.id), first)
        outcome = Outcome.SUCCESS if solved else Outcome.FAILURE
        retry = attempt_at(riddle, outcome=outcome).model_copy(update={"judged": judged})
        add_trajectory(store, Key(arm="eval/x", task_id=riddle.id, trial=1), retry)
    groups = AttemptGroups(evaluated(arm_results(store, tasks, {"x": ["eval/x"]}, trials=2)))
    for facts in facts_by_task(store, FIRST_TRIAL, {"eval/x": FIRST_TRIAL}):
        groups.add(facts)
    store.close()
    return groups


def test_own_judgements_are_counted_against_the_truth(tmp_path: Path) -> None:
    groups = counted(tmp_path, (True, True), (True, True), (True, False), (False, True), (False, False))
    assert tables_in(markdown(groups.judgements()))[0] == [
        "| trial 0, shared | 0 | 0 | 0 | 5 | 5 of 5 (100%) |",
        "| x, retries | 2 | 1 | 1 | 1 | 3 of 5 (60%) |",
    ]


def test_an_agent_that_sees_the_outcome_judges_nothing(tmp_path: Path) -> None:
    groups = counted(tmp_path, (True, None), (False, None))
    assert not any(groups.judged.values())

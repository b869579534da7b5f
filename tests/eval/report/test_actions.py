"""Numbers of actions by trial on four tasks that are counted by hand."""

from dataclasses import replace
from pathlib import Path

from eval.measure.results import arm_results
from eval.report.attempts import ActionsOfTasks
from eval.report.report_input import facts_by_task
from retroformer.method.records import Key, Outcome, Trajectory
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.store import Store
from tests.support.characters import attempt_at, task
from tests.support.evaluations import evaluated
from tests.support.facts import add_trajectory
from tests.support.markdown_tables import chapters_in_markdown, tables_in


def took(actions: int, name: str, solved: bool) -> Trajectory:
    return attempt_at(task(name), (0.0,) * actions, Outcome.SUCCESS if solved else Outcome.FAILURE)


def test_the_actions_of_each_attempt_are_counted(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")
    first = {"a": (4, True), "b": (10, False), "c": (20, False)}
    retries = {"x": {"b": [(6, True)], "c": [(12, False), (8, False)]}, "y": {"b": [(10, False), (2, True)]}}
    for name, (actions, solved) in first.items():
        add_trajectory(store, Key(arm=FIRST_TRIAL, task_id=name), took(actions, name, solved))
    for arm, by_task in retries.items():
        for name, attempts in by_task.items():
            for trial, (actions, solved) in enumerate(attempts, start=1):
                key = Key(arm=f"eval/{arm}", task_id=name, trial=trial)
                add_trajectory(store, key, took(actions, name, solved))
    arms = {arm: [f"eval/{arm}"] for arm in ("x", "y", "silent")}
    tasks = [task(name) for name in ("c", "b", "a")]
    evaluation = evaluated(arm_results(store, tasks, arms, trials=3), loop={"trials": 3})
    each, some = (ActionsOfTasks(replace(evaluation, tasks=played)) for played in (tasks, tasks * 5))
    for facts in facts_by_task(store, FIRST_TRIAL, {f"eval/{arm}": FIRST_TRIAL for arm in arms}):
        for counter in (each, some):
            counter.add(facts)
    store.close()
    assert tables_in(chapters_in_markdown(each.chapters()))[0] == [
        "| c | x | 20 | 12 | 8 |",
        "| c | y | 20 | - | - |",
        "| c | silent | 20 | - | - |",
        "| b | x | 10 | 6, solved | - |",
        "| b | y | 10 | 10 | 2, solved |",
        "| b | silent | 10 | - | - |",
        "| a | x | 4, solved | - | - |",
        "| a | y | 4, solved | - | - |",
        "| a | silent | 4, solved | - | - |",
    ]
    assert "of each attempt, the first 10 of 15 tasks." in chapters_in_markdown(some.chapters()), "30 rows at most"

"""Rates with unfinished tasks: over finished tasks only, and with unfinished ones counted as failures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from eval.measure.results import ArmResult, arm_results
from eval.measure.statistics import Rates
from eval.report.report import write_parts, write_report
from eval.report.report_input import ReportInput
from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.method.records import Key, Outcome, Task
from retroformer.run.arm_names import FIRST_TRIAL, first_trial
from retroformer.run.store import Store
from tests.support.characters import advice, attempt_at, task
from tests.support.facts import add_trajectory

pytestmark = pytest.mark.usefixtures("workplace")

ALONE, TRAINED = "eval/no reflection", "eval/trained"
OVER_ALL = "Over all {} tasks, unfinished ones counted as failures:"
CONFIG = """
run: riddles
environment: {name: alfworld}
loop: {trials: 2}
eval:
  arms:
    no reflection: {kind: none}
    trained: {kind: model, model: ppo}
"""


def tasks_of(attempts: Mapping[str, Sequence[str]]) -> list[Task]:
    return [task(f"capital-{number:02d}") for number in range(max(map(len, attempts.values())))]


def experiment_of(config: str) -> Experiment:
    Path("riddles.yaml").write_text(config)
    return load(Path("riddles.yaml"))


def filled(experiment: Experiment, attempts: Mapping[str, Sequence[str]]) -> Store:
    """Create a store of riddles: a letter per trial for each arm and task, `+` solved, `.` failed, `?` missing.

    The first letter of a retrying arm is trial 1. A self-judged attempt is `y` (failed, judged as solved) or
    `n` (solved, judged as failed).
    """
    store = Store(experiment.store_url, experiment.run)
    for arm, made in attempts.items():
        for riddle, letters in zip(tasks_of(attempts), made, strict=False):
            for trial, letter in enumerate(letters, start=0 if arm.endswith("trial 0") else 1):
                if letter == "?":
                    continue
                outcome = Outcome.SUCCESS if letter in "+n" else Outcome.FAILURE
                key = Key(arm=arm, task_id=riddle.id, trial=trial)
                played = attempt_at(riddle, (float(outcome is Outcome.SUCCESS),), outcome)
                judged = {"y": True, "n": False}.get(letter)
                add_trajectory(store, key, played.model_copy(update={"judged": judged}))
                if arm == TRAINED:
                    store.add_reflection(key, 0, advice("Say Paris."))
    return store


def report_of(attempts: Mapping[str, Sequence[str]], config: str = CONFIG) -> str:
    """Return the report in Markdown."""
    experiment = experiment_of(config)
    store = filled(experiment, attempts)
    arms = experiment.eval.stored_names
    tasks = tasks_of(attempts)
    outcomes = arm_results(store, tasks, arms, experiment.loop.trials)
    write_report(ReportInput(experiment, tasks, Rates(outcomes), [], store))
    store.close()
    return Path("runs/riddles/eval/report.md").read_text()


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}")[2].partition("\n## ")[0]


def outcomes_of(arms: Sequence[str], trials: int, attempts: Mapping[str, Sequence[str]]) -> list[ArmResult]:
    experiment = experiment_of(CONFIG)
    store = filled(experiment, attempts)
    made = arm_results(store, tasks_of(attempts), {arm: [f"eval/{arm}"] for arm in arms}, trials)
    store.close()
    return made


def test_four_solved_of_eight_problems_with_four_unfinished_are_a_half() -> None:
    config = CONFIG.partition("    trained:")[0].replace("trials: 2", "trials: 1")
    text = report_of({FIRST_TRIAL: [*"++++", *"????"]}, config)
    solved = section(text, "Solved by trial")
    finished, counted = solved.split(OVER_ALL.format(8))
    assert "Over the 4 tasks that every arm finished:" in finished
    assert "| no reflection | 1.000 [1.000, 1.000] | 1.000 | 4 |" in finished
    assert "| no reflection | 0.500 [0.125, 0.875] | 0.500 | 4 |" in counted
    assert "The infrastructure left 4 tasks unfinished in some arm, so every rate is given twice" in text


def test_a_task_counts_as_unsolved_from_its_first_missing_trial_on_unless_it_was_solved_before() -> None:
    # Solved at once; retry missing; solved by a retry; second retry missing; solved, judged as failed, retry missing.
    attempts = {FIRST_TRIAL: ["+", ".", ".", ".", "n"], "eval/x": ["", "?", "+", ".?", "?"]}
    (whole,) = outcomes_of(["x"], 3, attempts)
    (x,) = Rates([whole]).finished
    assert x.solved_NT.tolist() == [[1, 0], [1, 1], [1, 1]]
    assert whole.solved_NT.tolist() == [[1, 0, 0, 0, 1], [1, 0, 1, 0, 1], [1, 0, 1, 0, 1]]
    assert whole.return_NT.tolist() == whole.solved_NT.tolist()
    assert (x.incomplete, whole.incomplete) == (3, 3)


def test_a_later_attempt_does_not_replace_a_missing_one() -> None:
    (x,) = outcomes_of(["x"], 3, {FIRST_TRIAL: [".", "."], "eval/x": ["?+", ".+"]})
    assert x.solved_NT.tolist() == [[0, 0], [0, 0], [0, 1]]


def test_a_task_finished_by_one_arm_counts_for_it_if_another_did_not_finish_it() -> None:
    attempts = {FIRST_TRIAL: [*"....+"], "eval/x": ["+", "+", "+", "?", ""], "eval/y": [".", "?", "+", "+", ""]}
    x, y = outcomes_of(["x", "y"], 2, attempts)
    assert Rates([x, y]).finished[0].solved_NT.tolist() == [[0, 0, 1], [1, 1, 1]]
    assert x.solved_NT.tolist() == [[0, 0, 0, 0, 1], [1, 1, 1, 0, 1]]
    assert y.solved_NT.tolist() == [[0, 0, 0, 0, 1], [0, 0, 1, 1, 1]]


def test_a_stored_invalid_attempt_counts_as_missing() -> None:
    experiment = experiment_of(CONFIG)
    store = filled(experiment, {FIRST_TRIAL: [".", "."], "eval/x": ["+", "?"]})
    spoiled = attempt_at(task("capital-01"), (0.0,)).model_copy(update={"outcome": Outcome.INVALID})
    add_trajectory(store, Key(arm="eval/x", task_id="capital-01", trial=1), spoiled)
    (x,) = arm_results(store, [task("capital-00"), task("capital-01")], {"x": ["eval/x"]}, 2)
    store.close()
    assert (x.solved_NT.tolist(), x.finished_T.tolist()) == ([[0, 0], [1, 0]], [True, False])


def test_training_seeds_count_their_own_unfinished_tasks() -> None:
    config = CONFIG.replace("model: ppo", "model: [ppo-1, ppo-2]")
    attempts = {
        FIRST_TRIAL: [*"...."],
        ALONE: [*"...."],
        f"{TRAINED}/ppo-1": [*"++++"],
        f"{TRAINED}/ppo-2": [*"++??"],
    }
    finished, counted = section(report_of(attempts, config), "Solved by trial").split(OVER_ALL.format(4))
    for name, over_finished, over_all in (
        ("", "1.000", "0.750"),
        ("/ppo-1", "1.000", "1.000"),
        ("/ppo-2", "1.000", "0.500"),
    ):
        assert f"| trained{name} | 0.000 [0.000, 0.000] | {over_finished} [" in finished
        assert f"| trained{name} | 0.000 [0.000, 0.000] | {over_all} [" in counted


DISPUTED = {
    FIRST_TRIAL: [*"............"],
    ALONE: [*"......", *"++++++"],
    TRAINED: [*"++++++", *"??????"],
}


def test_the_headline_names_verdicts_that_unfinished_tasks_change() -> None:
    headline = report_of(DISPUTED).partition("![")[0]
    assert (
        "6 of 12 tasks are unfinished in some arm, and the verdict on **trained** depends on whether they are counted"
        in headline
    )
    assert (
        "- **trained** solves 100.0% of 6 tasks within 2 attempts, 100.0 points more than *no reflection* (95% "
        "interval over tasks: 100.0 to 100.0; p = 0.0312). The data do not show a difference between **trained** "
        "(50.0% of 12 tasks within 2 attempts, with unfinished ones counted as failures) and *no reflection*: 0.0 "
        "points (95% interval over tasks: -50.0 to 50.0; p = 1.0000)."
    ) in headline


def test_differences_and_solved_failures_are_given_twice() -> None:
    text = report_of(DISPUTED)
    finished, counted = section(text, "Differences after the last trial").split(OVER_ALL.format(12))
    assert "| trained | no reflection | 1.000 [1.000, 1.000] | 6 | 0 | 0.0312 |" in finished
    assert "| trained | no reflection | 0.000 [-0.500, 0.500] (covers 0) | 6 | 6 | 1.0000 |" in counted
    finished, counted = section(text, "Solved of the tasks that failed at trial 0").split(OVER_ALL.format(12))
    assert "Not solved at trial 0: 6." in finished
    assert "| trained | 6: 1.000 [1.000, 1.000] |" in finished
    assert "Not solved at trial 0: 12." in counted
    assert "| trained | 6: 0.500 [0.250, 0.750] |" in counted


def test_the_headline_says_that_unfinished_tasks_change_no_verdict() -> None:
    headline = report_of({FIRST_TRIAL: [*"........"], ALONE: [*"........"], TRAINED: [*"++++++??"]}).partition("![")[0]
    assert (
        "2 of 8 tasks are unfinished in some arm; counting them as failures does not change the verdicts." in headline
    )
    assert (
        "p = 0.0312). **trained** solves 75.0% of 8 tasks within 2 attempts, with unfinished ones counted as failures, "
        "75.0 points more than *no reflection* (95% interval over tasks: 37.5 to 100.0; p"
    ) in headline


def test_one_sentence_says_that_nothing_is_unfinished() -> None:
    text = report_of({FIRST_TRIAL: [*"........"], ALONE: [*"........"], TRAINED: [*"++++++.."]})
    assert "8 of 8 held-out tasks" in text
    assert "No task was left unfinished." in text
    assert "counted as failures" not in text
    assert text.count("| arm | by trial 0 |") == 1
    assert "## Solved of the 8 tasks that failed at trial 0" in text
    assert "\n\n- **trained** solves 75.0% of 8 tasks" in text


def test_arms_that_finished_no_common_task_still_have_a_report() -> None:
    attempts = {FIRST_TRIAL: [*"............"], ALONE: [*"......", *"??????"], TRAINED: [*"??????", *"++++++"]}
    text = report_of(attempts)
    assert "12 of 12 tasks are unfinished in some arm, so arms cannot be compared over finished tasks alone." in text
    assert (
        "- **trained** solves 50.0% of 12 tasks within 2 attempts, with unfinished ones counted as failures, 50.0 "
        "points more than *no reflection* (95% interval over tasks: 25.0 to 75.0; p = 0.0312)."
    ) in text
    solved = section(text, "Solved by trial")
    assert "No task was finished by every arm." in solved
    assert "| trained | 0.000 [0.000, 0.000] | 0.500 [0.250, 0.750] | 0.500 | 6 |" in solved
    assert "nan" not in text


def test_a_missing_retry_is_not_a_failed_one() -> None:
    text = report_of(DISPUTED | {TRAINED: ["+", "+", "?", *"+++++++++"]})
    assert "| trained | Say Paris. | solved |" in text
    experiment = load(Path("riddles.yaml"))
    store = Store(experiment.store_url, experiment.run)
    store.add_reflection(Key(arm=TRAINED, task_id="capital-02", trial=1), 0, advice("Say Paris."))
    arms = experiment.eval.stored_names
    tasks = tasks_of(DISPUTED)
    write_report(ReportInput(experiment, tasks, Rates(arm_results(store, tasks, arms, 2)), [], store))
    store.close()
    assert "| trained | Say Paris. | not tried | - |" in Path("runs/riddles/eval/report.md").read_text()


def test_the_table_of_several_actors_gives_its_rates_twice() -> None:
    experiment = experiment_of(CONFIG)
    attempts = {
        first_trial("bold"): [*"++.."],
        first_trial("shy"): [*"+..?"],
        "eval/bold/none": ["", "", "+", "?"],
        "eval/shy/none": ["", ".", ".", "?"],
    }
    store = filled(experiment, attempts)
    of_four, of_three = (
        {
            actor: arm_results(store, tasks, {f"{actor}/none": [f"eval/{actor}/none"]}, 2, first_trial(actor))
            for actor in ("bold", "shy")
        }
        for tasks in (tasks_of(attempts), tasks_of(attempts)[:3])
    )
    store.close()
    write_parts(experiment, "actor", of_four)
    finished, counted = (
        Path("runs/riddles/eval/report.md")
        .read_text()
        .split("Unfinished in an arm: 1 of 4 with bold, 1 of 4 with shy.")
    )
    assert "unfinished tasks counted as failures." in counted
    assert "| bold | none | 3 | 1 | 0.667 [0.000, 1.000] | 1.000 [1.000, 1.000] |" in finished
    assert "| bold | none | 4 | 1 | 0.500 [0.000, 1.000] | 0.750 [0.250, 1.000] |" in counted
    assert "| shy | none | 3 | 1 | 0.333 [0.000, 1.000] | 0.333 [0.000, 1.000] |" in finished
    assert "| shy | none | 4 | 1 | 0.250 [0.000, 0.750] | 0.250 [0.000, 0.750] |" in counted
    write_parts(experiment, "actor", of_three)
    assert "counted as failures" not in Path("runs/riddles/eval/report.md").read_text()

"""`train.rated_by`: imported logs and stored attempts rated by another return, without playing again."""

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from retroformer.cases.import_cases import import_cases
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config, load
from retroformer.errors import ConfigError
from retroformer.method.records import Key, Outcome, Reflection, Task
from retroformer.run.store import open_store
from tests.support.characters import attempt_at
from tests.support.data import DATA, needs_data
from tests.support.facts import add_trajectory
from tests.train.world import AUTHOR, BAD, GOOD, collect, config_file, prompt
from train.commands import train
from train.data import inputs

LOGS = DATA / "recorded" / "reflexion_logs.jsonl.xz"


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the config of a run into which the recorded logs were imported."""
    folder = tmp_path_factory.mktemp("logs")
    content: dict[str, Any] = {
        "run": "logs",
        "environment": {"name": "hotpotqa", "data": str(DATA / "hotpotqa"), "split": "all"},
        "store": f"sqlite:///{folder / 'experience.db'}",
    }
    path = folder / "logs.yaml"
    path.write_text(yaml.safe_dump(content))
    import_cases(load(path), LOGS, "reflexion")
    return path


def signs(experiment: Experiment) -> Counter[int]:
    return Counter((rated.rating > 0) - (rated.rating < 0) for rated in inputs.rated(experiment))


@needs_data("recorded/reflexion_logs.jsonl.xz")
@needs_data("hotpotqa")
@pytest.mark.parametrize(
    ("overrides", "positive", "negative"),
    [
        ((), 35, 13),
        (("train.rated_by=f1_with_stop_words",), 35, 13),
        (("train.rated_by=f1",), 32, 14),
        (("train.rated_by=em",), 19, 0),
        (("train.rated_by=em", "environment.reward=em"), 19, 0),
        (("train.rated_by=success",), 19, 0),
        (("train.rated_by=shaped",), 32, 14),
        (("train.rated_by=success_by_second_retry",), 30, 0),
    ],
)
def test_the_recorded_logs_are_rated_by_the_return_that_the_config_names(
    imported: Path, overrides: tuple[str, ...], positive: int, negative: int
) -> None:
    experiment = load(imported, overrides)
    assert signs(experiment) == Counter({1: positive, -1: negative, 0: 261 - positive - negative})
    assert len(inputs.positive_reflections(experiment)) == positive


@needs_data("recorded/reflexion_logs.jsonl.xz")
@needs_data("hotpotqa")
def test_a_success_of_the_recorded_logs_counts_for_the_last_two_reflections_before_it(imported: Path) -> None:
    experiment = load(imported, ["train.rated_by=success_by_second_retry"])
    with closing(open_store(experiment)) as store:
        advised = {(stored.key.task_id, stored.key.trial) for stored in store.stream_reflections("recorded")}
        solved = [key for key, attempt in store.stream_trajectories("recorded") if attempt.outcome is Outcome.SUCCESS]
    by_next, by_second = (
        {(key.task_id, key.trial - back) for key in solved for back in range(retries)} & advised for retries in (1, 2)
    )
    assert (len(by_next), len(by_second)) == (19, 30)
    credited = {(rating.task_id, rating.trial) for rating in inputs.rated(experiment) if rating.rating == 1}
    assert credited == by_second
    assert inputs.both_ratings(experiment).split("\n") == [
        "reflections by success_by_second_retry: 261 rated: 30 positive, 0 negative, 231 zero; 0 pairs",
        "reflections by stored: 261 rated: 35 positive, 13 negative, 213 zero; 0 pairs",
    ]


@needs_data("recorded/reflexion_logs.jsonl.xz")
@needs_data("hotpotqa")
def test_another_reward_in_the_config_no_longer_changes_nothing_in_silence(imported: Path) -> None:
    with pytest.raises(ConfigError, match=r"'recorded' facts are rated by 'f1_with_stop_words'.*train\.rated_by"):
        inputs.rated(load(imported, ["environment.reward=em"]))


def test_collected_reflections_are_rated_by_success(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=3)  # The good advice has a return of 1, but no task is solved.
    assert signs(load(config)) == Counter({1: 3, 0: 3})
    assert {(pair.chosen, pair.rejected) for pair in inputs.pairs(load(config))} == {(GOOD, BAD)}
    assert signs(load(config, ["train.rated_by=success"])) == Counter({0: 6})


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_sft_imitates_what_the_other_return_rates_positively_and_the_summary_shows_both(
    tiny_base: Path, workplace: Path
) -> None:
    path = config_file(workplace, tiny_base)
    collect(path, tasks=2)
    with closing(open_store(load(path))) as store:
        # The bad advice to the first task was followed by a retry that solved it, without a higher stored return.
        again = Key(arm="collect", task_id="collect task-0", trial=2)
        solved = attempt_at(Task(id="collect task-0", environment="riddles", split="train"), outcome=Outcome.SUCCESS)
        store.add_reflection(again, 1, Reflection(text="Once more.", prompt=prompt("again"), author=AUTHOR))
        add_trajectory(store, again, solved)
    config = Config(path, (), load(path, ["train.rated_by=success_by_second_retry"]))
    assert {advice.text for advice in inputs.positive_reflections(load(path))} == {GOOD}
    assert {advice.text for advice in inputs.positive_reflections(config.experiment)} == {BAD, "Once more."}
    _, *lines = train("sft", [config]).split("\n")
    # What a second retry after the good advice to the first task would have brought is unknown.
    assert lines == [
        "reflections by success_by_second_retry: 4 rated: 2 positive, 0 negative, 2 zero; 0 pairs",
        "reflections by stored: 5 rated: 2 positive, 0 negative, 3 zero; 2 pairs",
    ]


def test_an_unknown_return_is_refused_with_the_choices(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=1)
    choices = "stored, success, success_by_second_retry, shaped"
    with pytest.raises(ConfigError, match=rf"alfworld has no return 'em'; choose one of {choices}\."):
        inputs.rated(load(config, ["train.rated_by=em"]))


def test_live_returns_cannot_be_rated_anew(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    overrides = ("train.grpo.reward=live", "train.rated_by=success")
    with pytest.raises(ConfigError, match=r"train\.rated_by=success rates stored attempts"):
        train("grpo", [Config(config, overrides, load(config, overrides))])

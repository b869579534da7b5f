"""`train.rated_by`: imported logs and stored attempts rated by another return, without playing again."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from collect.import_logs import import_logs
from retroformer.errors import ConfigError
from retroformer.experiment.config import Experiment
from retroformer.experiment.file import load
from retroformer.experiment.parts import LoadedConfig
from tests.support.data import DATA, needs_data
from tests.train.world import BAD, GOOD, collect, config_file
from train.commands import grpo
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
    import_logs(LoadedConfig(path, (), load(path)), LOGS, as_json=False)
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
def test_another_reward_in_the_config_no_longer_changes_nothing_in_silence(imported: Path) -> None:
    with pytest.raises(ConfigError, match=r"'recorded' facts are rated by 'f1_with_stop_words'.*train\.rated_by"):
        inputs.rated(load(imported, ["environment.reward=em"]))


def test_collected_reflections_are_rated_by_success(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=3)  # The good advice has a return of 1, but no task is solved.
    assert signs(load(config)) == Counter({1: 3, 0: 3})
    assert {(pair.chosen, pair.rejected) for pair in inputs.pairs(load(config))} == {(GOOD, BAD)}
    assert signs(load(config, ["train.rated_by=success"])) == Counter({0: 6})


def test_an_unknown_return_is_refused_with_the_choices(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=1)
    with pytest.raises(ConfigError, match=r"alfworld has no return 'em'; choose one of stored, success\."):
        inputs.rated(load(config, ["train.rated_by=em"]))


def test_live_returns_cannot_be_rated_anew(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    overrides = ("train.grpo.reward=live", "train.rated_by=success")
    with pytest.raises(ConfigError, match=r"train\.rated_by=success rates stored attempts"):
        grpo(LoadedConfig(config, overrides, load(config, overrides)))

"""A blank reflection, as a reflector without a promoted adapter gives it, is no training data."""

from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.method.records import Key, Reflection, Task
from retroformer.run.store import open_store
from tests.support.characters import attempt_at
from tests.support.facts import add_trajectory
from tests.train.world import AUTHOR, GOOD, collect, config_file, prompt
from train.data.inputs import both_ratings, pairs, positive_reflections, prompts, rated


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_reflection_is_neither_imitated_nor_paired_nor_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_file(tmp_path, tmp_path)
    collect(config, tasks=2)
    experiment = load(config)
    before = [len(pairs(experiment)), len(positive_reflections(experiment)), len(rated(experiment))]
    store = open_store(experiment)
    for name, score in (("lucky", 1.0), ("collect task-0", 0.5)):
        subject = Task(id=name, environment="riddles", split="train")
        key = Key(arm="collect", task_id=name, trial=1, candidate=2)
        add_trajectory(store, Key(arm="collect", task_id=name), attempt_at(subject))
        store.add_reflection(key, 0, Reflection(text=blank, prompt=prompt(name), author=AUTHOR))
        add_trajectory(store, key, attempt_at(subject, (score,)))
    store.close()
    assert [len(pairs(experiment)), len(positive_reflections(experiment)), len(rated(experiment))] == before
    assert both_ratings(experiment).count(" 4 rated: ") == 2, (
        "a retry without advice, however lucky, is no rated advice"
    )
    assert {advice.text for advice in positive_reflections(experiment)} == {GOOD}
    assert prompt("lucky") in prompts(experiment), "advice on this failure is still worth writing"

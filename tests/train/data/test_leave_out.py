"""Marks of people change no training data unless the config asks for it; then every reader of training facts leaves the
marked stories out.
"""

from pathlib import Path

import pytest

from eval.play.preflight import training_attempts
from retroformer.agents.arms.retrieved import load_rated_advice
from retroformer.config.file import load
from retroformer.integrations.gepa.search import failed_first_attempts
from retroformer.run.store import open_store
from tests.train.world import collect, config_file
from train.data.inputs import failures, pairs, positive_reflections, prompts, rated, written_advice


def test_stories_with_a_mark_are_left_out_on_request_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_file(tmp_path, tmp_path)
    collect(config, tasks=3)
    store = open_store(load(config))

    def counts(*overrides: str) -> list[int]:
        experiment = load(config, list(overrides))
        trained_on = [len(read(experiment)) for read in (pairs, positive_reflections, rated, prompts, failures)]
        counted = list(training_attempts(experiment, [experiment.run]))
        recalled = load_rated_advice(store, experiment.train.leave_out)
        return [*trained_on, len(failed_first_attempts(experiment, store)), len(counted), len(recalled)]

    before = counts()
    with_two_tasks = [count * 2 // 3 for count in before]
    task = next(store.advice_rows("collect")).task_id
    store.marks.add("collect", task, "leaking", "It names the answer.")
    store.marks.add("another arm", "collect task-1", "leaking")
    assert counts() == before
    assert counts("train.leave_out=[wrong]") == before
    assert counts("train.leave_out=[wrong, leaking]") == with_two_tasks
    store.marks.add("collect", task, "")
    assert counts("train.leave_out=[leaking]") == before
    written = len(written_advice(load(config)))
    store.marks.add("written", task, "leaking")
    store.close()
    assert len(written_advice(load(config))) == written
    assert len(written_advice(load(config, ["train.leave_out=[leaking]"]))) == written * 2 // 3
    assert counts("train.leave_out=[leaking]") == before

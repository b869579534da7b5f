"""Test that the cases of a run are exported to a file and imported from one."""

from pathlib import Path

import pytest

import retroformer as rf
from retroformer.__main__ import main
from retroformer.cases.export_cases import export_cases
from retroformer.cases.import_cases import import_cases, store_cases
from retroformer.config.experiment import Experiment
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import Key
from retroformer.run.arm_names import COLLECT, UNADVISED
from retroformer.run.store import Store, open_store
from tests.support.cases import case
from tests.support.characters import advice, attempt_at, task
from tests.support.facts import add_trajectory
from tests.support.runs import ROOT

MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "Now."}, {"type": "image_url", "image_url": {"url": "a"}}]},
    {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "None."},
]
STEPS = [{"action": "find", "observation": "None."}]
CASES = [
    case(),
    case(repeat=1),
    case(candidate=1, advice={"text": "Look."}, retry={"score": 0.5, "output": "Half."}),
    case(trial=1, attempt={"score": 0.5, "steps": [{"action": "a", "observation": "b", "reward": 0.5}]}),
    case(advice=None),
    case(task={"id": "refund-2", "input": {"order": 7}}, advice=None, retry=None),
    case(task={"id": "refund-3", "input": "Now."}, retry=None),
    case(task={"id": "refund-4", "input": "Now."}, attempt={"score": 0.0, "messages": MESSAGES}, retry=None),
    case(task={"id": "refund-5", "input": "Now."}, attempt={"score": 0.0, "messages": MESSAGES, "steps": STEPS}),
]


def sorted_lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines())


@pytest.mark.parametrize("name", ["cases.jsonl", "cases.parquet"])
def test_exported_cases_are_those_that_were_imported(experiment: Experiment, tmp_path: Path, name: str) -> None:
    rf.write_cases(tmp_path / name, CASES)
    said = import_cases(experiment, tmp_path / name)
    assert said.startswith("9 cases are in sqlite:///")
    assert said.endswith("19 of their facts new: 5 are rated, 1 failures wait for advice")
    assert export_cases(experiment, tmp_path / f"again-{name}").startswith("9 cases are in")
    again = {exported.model_dump_json() for exported in rf.read_cases(tmp_path / f"again-{name}")}
    expected = [rf.Case.model_validate(each.model_dump() | {"rating": each.gain}) for each in CASES]
    # The input is stored as the text that the reflector reads.
    assert again == {each.model_dump_json().replace('{"order":7}', r'"{\"order\": 7}"') for each in expected}


def test_an_export_is_imported_without_duplicates(experiment: Experiment, tmp_path: Path) -> None:
    store_cases(experiment, lambda: CASES)
    export_cases(experiment, tmp_path / "cases.jsonl")
    assert " 0 of their facts new" in import_cases(experiment, tmp_path / "cases.jsonl")
    other = experiment.model_copy(update={"run": "other"})
    import_cases(other, tmp_path / "cases.jsonl")
    export_cases(other, tmp_path / "other.jsonl")
    assert sorted_lines(tmp_path / "other.jsonl") == sorted_lines(tmp_path / "cases.jsonl")


def test_collected_facts_are_exported_with_their_trials_and_candidates(experiment: Experiment, tmp_path: Path) -> None:
    store = open_store(experiment)
    for trial, candidate, reward in ((0, 0, 0.0), (1, 0, 0.25), (1, 1, 0.5), (2, 0, 1.0)):
        key = Key(arm=COLLECT, task_id="a", trial=trial, candidate=candidate)
        add_trajectory(store, key, attempt_at(task("a"), (reward,)))
        if trial:
            store.add_reflection(key, int(trial == 2), advice(f"advice {trial}.{candidate}"))
    unadvised = Key(arm=UNADVISED, task_id="b")
    add_trajectory(store, unadvised, attempt_at(task("b")))
    add_trajectory(store, Key(arm="eval/none", task_id="c"), attempt_at(task("c")))
    store.close()
    assert export_cases(experiment, tmp_path / "cases.jsonl").startswith("4 cases")
    assert [
        (each.task.id, each.trial, each.candidate, each.attempt.score, each.advice and each.advice.text, each.rating)
        for each in rf.read_cases(tmp_path / "cases.jsonl")
    ] == [
        ("a", 0, 0, 0.0, "advice 1.0", 0.25),
        ("a", 0, 1, 0.0, "advice 1.1", 0.5),
        ("a", 1, 0, 0.5, "advice 2.0", 0.5),
        ("b", 0, 0, 0.0, None, None),
    ]


def test_a_return_that_is_no_score_is_refused(experiment: Experiment, tmp_path: Path) -> None:
    store = open_store(experiment)
    add_trajectory(store, Key(arm=COLLECT, task_id="a"), attempt_at(task("a"), (3.0,)))
    store.close()
    with pytest.raises(ConfigError, match=r"'a' are no case: score is 3\.0: .*; export them with --exact"):
        export_cases(experiment, tmp_path / "cases.jsonl")
    assert not (tmp_path / "cases.jsonl").exists()


def test_an_empty_run_is_not_exported(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="No attempts of the run 'mine'"):
        export_cases(experiment, tmp_path / "cases.jsonl")


def test_the_commands_take_the_format_from_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(ROOT / "configs/agent.yaml")
    monkeypatch.chdir(tmp_path)
    rf.write_cases("cases.jsonl", CASES)
    main(["import", config, "cases.jsonl"])
    main(["export", config, "cases.parquet"])
    main(["import", config, "cases.parquet", "run=other"])
    main(["export", config, "lines", "--format", "cases"])
    main(["import", config, "lines", "--format", "cases"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 1)[0] for line in lines] == ["9"] * 5
    store = Store("sqlite:///runs/other/experience.db", "other")
    assert (
        store.arm_counts()[COLLECT].attempts,
        store.arm_counts()[COLLECT].advice,
        store.arm_counts()[UNADVISED].attempts,
    ) == (11, 6, 2)
    store.close()

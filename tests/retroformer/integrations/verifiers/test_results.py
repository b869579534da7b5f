"""Tests of the import of rollouts that the real package has saved."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retroformer.__main__ import main
from retroformer.agents.messages import steps_of
from retroformer.cases.traced import TracedAttempt
from retroformer.config.file import load
from retroformer.errors import MissingInput
from retroformer.integrations.verifiers.results import read
from retroformer.method.records import Step
from retroformer.run.store import open_store

pytest.importorskip("verifiers", reason="needs verifiers")
save_utils = pytest.importorskip("verifiers.legacy.utils.save_utils")


def rollout(example: int, said: str, reward: float, **fields: Any) -> dict[str, Any]:
    return {
        "example_id": example,
        "prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"What is {example} + 1?"}],
        "completion": [{"role": "assistant", "content": said, "reasoning_content": "Hm, let me think."}],
        "reward": reward,
        "timing": {},
        "is_completed": True,
        "is_truncated": False,
        "metrics": {"exact": reward, "length": 12.0},
        "token_usage": {"input_tokens": 20.0, "output_tokens": 5.0},
        **fields,
    }


def save(folder: Path, rollouts: list[dict[str, Any]]) -> Path:
    """Save rollouts with the package's own function."""
    save_utils.save_outputs(rollouts, folder)
    (folder / "metadata.json").write_text(json.dumps({"env_id": "sums"}))
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(f"run: mine\nstore: sqlite:///{tmp_path}/mine.db\nenvironment: {{name: agent}}\n")
    return path


def test_a_thousand_rollouts_become_ratings_and_failures_that_wait(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts = []
    for example in range(500):
        advised = {"info": {"advice": "Count up."}} if example % 2 else {}
        rollouts += [
            rollout(example, "Don't know.", 0.0),
            rollout(example, "Got it.", float(example % 4 == 1), **advised),
        ]
    folder = save(tmp_path / "outputs", rollouts)
    for _ in range(2):
        main(["import", str(config), str(folder), "--format", "verifiers", "--json"])
    with closing(open_store(load(config, []))) as store:
        ratings = [after - before for *_, before, after, _ in store.rating_rows("collect")]
        key, attempt = next(iter(store.stream_trajectories("collect")))
    # 250 examples have advice on their second rollout, which solved every other one.
    assert (len(ratings), sum(ratings)) == (250, 125.0)
    assert key.task_id.startswith("sums/")
    assert attempt.usage.prompt_tokens == 20
    assert attempt.messages is not None
    assert [message.role for message in attempt.messages] == ["system", "user", "assistant"]
    assert "let me think" not in attempt.model_dump_json()
    assert "rollouts" not in capsys.readouterr().err


def test_the_task_is_what_the_prompt_says_and_no_later_message(tmp_path: Path) -> None:
    said = [{"role": "assistant", "content": "2"}, {"role": "user", "content": "Wrong."}]
    asked = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "text", "text": ""}]}]
    folder = save(tmp_path / "outputs", [rollout(1, "2", 0.0, prompt=asked, completion=said)])
    [attempt] = read(folder)
    assert isinstance(attempt, TracedAttempt)
    assert attempt.task.input == "What is it?\n"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"example_id": None}, "Line 2 of .*results.jsonl is JSON of another shape .example_id"),
        ({"example_id": True}, "Line 2 of .*results.jsonl is JSON of another shape .example_id.*valid integer"),
        ({"reward": "high"}, "Line 2 of .*reward: Input should be a valid number"),
        ({"reward": 7.0}, r"Rollout 2 of .*results.jsonl: reward is 7: it must be from 0 to 1"),
        ({"completion": 7}, "Line 2 of .*completion"),
        ({"completion": [{"role": "assistant", "content": 7}]}, r"Rollout 2 of .*messages\[2\].content"),
        ({"token_usage": {"input_tokens": -1}}, "Line 2 of .*token_usage.input_tokens"),
        ({"info": {"advice": 7}}, r"Rollout 2 of .*info\['advice'\] is 7: it must be a text or a list of texts"),
        ({"metrics": {"exact": "x"}}, "Line 2 of .*metrics.exact"),
    ],
)
def test_a_malformed_rollout_is_refused_with_its_line_and_field(
    fields: dict[str, Any], sentence: str, config: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path / "outputs", [rollout(1, "2", 1.0), rollout(2, "3", 1.0) | fields])
    with pytest.raises(MissingInput, match=sentence):
        main(["import", str(config), str(folder), "--format", "verifiers"])
    with closing(open_store(load(config, []))) as store:
        assert store.arms() == []


def test_a_metric_can_be_the_score_and_errors_are_left_out(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts = [
        rollout(1, "3", 9.0, metrics={"exact": 0.25}),
        rollout(1, "2", 9.0, metrics={"exact": 1.0}, info={"advice": "Count up."}),
        rollout(2, "", 0.0, error={"error": "Timeout"}),
    ]
    main(["import", str(config), str(save(tmp_path / "a", rollouts)), "--format", "verifiers", "--score", "exact"])
    assert "rollouts that ended in an error" in capsys.readouterr().out
    with closing(open_store(load(config, []))) as store:
        assert [attempt.episode_return for _, attempt in store.stream_trajectories("collect")] == [0.25, 1.0]


def test_a_line_that_is_cut_and_metadata_without_a_name_are_refused(config: Path, tmp_path: Path) -> None:
    folder = save(tmp_path / "outputs", [rollout(1, "2", 1.0)])
    (folder / "metadata.json").write_text("{}")
    with pytest.raises(MissingInput, match="env_id is missing"):
        main(["import", str(config), str(folder), "--format", "verifiers"])
    (folder / "metadata.json").unlink()
    results = folder / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-10])
    with pytest.raises(MissingInput, match=r"Line 1 of .*results\.jsonl"):
        main(["import", str(config), str(folder), "--format", "verifiers"])
    with pytest.raises(MissingInput, match=r"There is no results\.jsonl of verifiers"):
        main(["import", str(config), str(tmp_path / "nowhere"), "--format", "verifiers"])


def test_calls_of_tools_are_read_and_rollouts_count_once(tmp_path: Path) -> None:
    call = {"id": "c1", "name": "add", "arguments": '{"to": 1}'}
    said = [
        {"role": "assistant", "content": "I add.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "assistant", "content": "2"},
    ]
    saved = [rollout(1, "", 0.0, completion=save_utils.sanitize_tool_calls(said)), rollout(1, "3", 0.0)]
    folder = save(tmp_path / "outputs", [*saved, rollout(1, "4", 0.0)])
    assert '"tool_calls": ["{' in (folder / "results.jsonl").read_text()
    (folder / "metadata.json").write_text(json.dumps({"env_id": "sums", "rollouts_per_example": 2}))
    shutil.copytree(folder, tmp_path / "outputs" / "copy", ignore=lambda *_: ["copy"])
    first, *others = read(tmp_path / "outputs")
    assert isinstance(first, TracedAttempt)
    assert steps_of(first.attempt.messages or ())[0] == Step(thought="I add.", action='add({"to": 1})', observation="2")
    assert [getattr(entry, "reason", "attempt") for entry in others] == [
        "attempt",
        "rollouts beyond rollouts_per_example",
        "results that another file has too",
    ]

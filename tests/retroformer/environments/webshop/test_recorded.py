"""Tests on the real shop of 1,000 products: every recorded episode, the examples of the prompts, and play by hand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from retroformer.method.prompts import load_pack
from tests.support.webshop import SHARED, index_of_the_data, make, recorded, visit

ROOT = Path(__file__).parents[4]


@pytest.fixture
def real_data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETROFORMER_CACHE", str(index_of_the_data(tmp_path_factory)))
    return SHARED


def test_every_recorded_episode_is_reproduced_byte_for_byte(real_data: Path) -> None:
    environment, episodes = make(real_data).environment(), recorded("golden_episodes_react.jsonl.xz")
    assert len(episodes) > 50
    for episode in episodes:
        expected = episode["steps"]
        actions = [step["action"] for step in expected[1:]]
        seen = visit(environment, episode["goal_idx"], *actions)
        assert [transition.observation for transition in seen] == [step["obs"] for step in expected]
        assert [transition.reward for transition in seen[1:]] == pytest.approx(
            [step["reward"] for step in expected[1:]], abs=1e-9
        )
        assert [transition.over for transition in seen[1:]] == [step["done"] for step in expected[1:]]


def test_the_packs_examples_replay_in_the_environment(real_data: Path) -> None:
    environment, pack = make(real_data, split="train").environment(), load_pack("default", "webshop")
    goals = [2065, 2141, 2097]
    assert len(pack.examples) == len(goals)
    actions = iter(pack.actions)
    for idx, example in zip(goals, pack.examples, strict=True):
        lines = example.splitlines()
        count = sum(line.startswith("Action ") for line in lines)
        opening, *seen = visit(environment, idx, *(next(actions) for _ in range(count)))
        transcript = "\n".join(line for line in lines if not line.startswith(("Thought ", "Action ")))
        texts = [f"Observation {number}: {transition.observation}" for number, transition in enumerate(seen, start=1)]
        shown = "\n".join((opening.observation.strip(), *texts))
        assert transcript.strip() == "\n".join(line.rstrip() for line in shown.splitlines()).strip()
        assert seen[-1].success


def test_playing_from_the_command_line_is_the_same_environment(real_data: Path) -> None:
    (episode, *_) = recorded("golden_episodes_react.jsonl.xz")
    command = ["play", "configs/webshop.yaml", "--task", str(episode["goal_idx"]), "--jsonl"]
    played = subprocess.run(
        [sys.executable, "-m", "retroformer", *command, f"environment.data={real_data}"],
        input="\n".join(step["action"] for step in episode["steps"][1:]) + "\n",
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    lines = [json.loads(line) for line in played.stdout.splitlines()]
    assert [line["observation"] for line in lines] == [step["obs"] for step in episode["steps"]]

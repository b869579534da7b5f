"""Tests of what the page on learning shows: training curves and who wrote the advice."""

import json
import re
from pathlib import Path

from starlette.testclient import TestClient

from tests.eval.view.test_pages import read


def test_authors_are_compared_by_length_rating_and_flags(client: TestClient) -> None:
    shown = read(client, "/learning")
    # Words: 2, 4, 4 and 4; ratings 0, .5 and 0; two of four truncated, one copied, one repeated, one with the same
    # steps.
    assert "collect, sft 4 3.5 +0.167 33% 0% 50% 25% 25% 25%" in shown


def test_training_curves_come_from_the_folders_of_the_stages(client: TestClient, run_folder: Path) -> None:
    metrics = {
        "sft": {"stage": "sft", "losses": [2.0, 1.0, 0.5]},
        "ppo": {"stage": "ppo", "history": [{"score": 0.1, "kl": 0.0}, {"score": 0.4, "kl": 0.2}]},
        "reward": {"stage": "reward", "held_out_pairs": 40, "held_out_accuracy": 0.65, "held_out_majority": 0.4},
        "damaged": {"stage": 7},
    }
    for stage, measures in metrics.items():
        (run_folder / stage).mkdir()
        (run_folder / stage / "metrics.json").write_text(json.dumps(measures))
    shown = read(client, "/learning")
    assert "SFT loss 1 2.000 0.500" in shown
    assert "PPO score 1 0.100 0.400" in shown
    assert re.search(r"reward - 40 0.65 - - 0.4", shown)
    assert read(client, "/").count("finished") == 4

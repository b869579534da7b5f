"""An arm that keeps the best of several answers: played, proved by both its hashes, and never greedy."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from eval.arms import check_arms
from eval.compare import compare_arms
from eval.verify import verify_models
from retroformer.assembly import Connections, parts
from retroformer.config import Endpoint
from retroformer.config_file import load
from retroformer.errors import ConfigError, MissingInput, ProvenanceError
from retroformer.store import open_store
from tests.support.judged import judged_run, save_adapter
from tests.support.runs import facts, open_page

ARMS: dict[str, Any] = {
    "alone": {"kind": "none"},
    "one": {"kind": "model", "model": "sft"},
    "best": {"kind": "model", "model": "sft+best3"},
}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return judged_run(
        tmp_path,
        loop={"trials": 2, "actions": 6, "environment_processes": 1},
        reflector={"view": "compact", "max_new_tokens": 12, "temperature": 0.7},
        eval={"split": "held_out", "tasks": 2, "arms": ARMS, "reference": "alone"},
    )


def test_the_arm_is_played_and_another_reward_model_is_found_out(page: Path) -> None:
    opened = open_page(page)
    asyncio.run(compare_arms(opened))
    one, best = (facts(opened, f"eval/{arm}").reflections for arm in ("one", "best"))
    assert len(best) == len(one) > 0
    assert {found.reflection.sampling.temperature for found in one} == {0.0}
    assert {found.reflection.sampling.temperature for found in best} == {0.7}
    (hash_of_one,) = {found.reflection.author.adapter_sha256 for found in one}
    (hash_of_both,) = {found.reflection.author.adapter_sha256 for found in best}
    report = Path("runs/judged/eval/report.md").read_text()
    for name, proved in (("sft", hash_of_one), ("sft+best3", hash_of_both)):
        assert re.search(rf"\| {re.escape(name)} \| {str(proved)[:12]} \| the folder of this run, by hash", report)

    async def verify_what_was_replaced() -> None:
        async with parts(opened, asks_reflector=True) as made:
            save_adapter(page, page.parent / "runs/judged/reward", seed=7)
            store = open_store(opened.experiment)
            try:
                assert len(await verify_models(opened.experiment, made, store, ["sft"])) == 1
                await verify_models(opened.experiment, made, store, ["sft+best3"])
            finally:
                store.close()

    with pytest.raises(ProvenanceError, match=r"judged/sft holds, or another reward model than runs/judged/reward "):
        asyncio.run(verify_what_was_replaced())


def test_what_is_not_served_names_both_commands() -> None:
    served = Connections("http://127.0.0.1:1/v1", frozenset({"base", "sft"}))
    with pytest.raises(MissingInput, match=r"'sft\+best3' is served, .*train sft EXPER.* and `python -m train reward "):
        served.model(Endpoint(), "sft+best3")


def test_the_best_of_answers_without_chance_is_refused(page: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval\.arms\.best\.model: .*set it above 0"):
        check_arms(load(page, ["reflector.temperature=0"]))

"""Tests of a best-of-n arm: it is played, verified by both its hashes, and never greedy."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from eval.play.verify import verify_models
from eval.report.report import compare_arms
from retroformer.config.parts import Connections, parts
from retroformer.config.sections.base import Endpoint
from retroformer.errors import MissingInput, ProvenanceError
from retroformer.run.store import open_store
from tests.support.judged import judged_run, save_adapter
from tests.support.runs import ROOT, facts, open_config

ARMS: dict[str, Any] = {
    "alone": {"kind": "none"},
    "one": {"kind": "model", "model": "sft"},
    "best": {"kind": "model", "model": "sft+best3"},
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return judged_run(
        tmp_path,
        loop={"trials": 2, "actions": 6},
        reflector={"view": "compact", "max_new_tokens": 12, "temperature": 0.7},
        eval={"split": "held_out", "tasks": 2, "arms": ARMS},
    )


@pytest.mark.slow
def test_the_arm_is_played_and_another_reward_model_is_detected(config: Path) -> None:
    opened = open_config(config)
    asyncio.run(compare_arms(opened))
    single, best = (facts(opened, f"eval/{arm}").reflections for arm in ("one", "best"))
    assert len(best) == len(single) > 0
    assert {stored.reflection.sampling.temperature for stored in single} == {0.0}
    assert {stored.reflection.sampling.temperature for stored in best} == {0.7}
    (hash_of_one,) = {stored.reflection.author.adapter_sha256 for stored in single}
    (hash_of_both,) = {stored.reflection.author.adapter_sha256 for stored in best}
    report = Path("runs/judged/eval/report.md").read_text()
    for name, proved in (("sft", hash_of_one), ("sft+best3", hash_of_both)):
        assert re.search(
            rf"\| {re.escape(name)} \| {str(proved)[:12]} \| yes: hash and pinned name match the folder of this run",
            report,
        )

    async def verify_what_was_replaced() -> None:
        async with parts(opened, asks_reflector=True) as made:
            save_adapter(config, config.parent / "runs/judged/reward", seed=7)
            store = open_store(opened.experiment)
            try:
                assert len(await verify_models(opened.experiment, made, store, ["sft"])) == 1
                await verify_models(opened.experiment, made, store, ["sft+best3"])
            finally:
                store.close()

    with pytest.raises(ProvenanceError, match=r"judged/sft holds, or another reward model than runs/judged/reward "):
        asyncio.run(verify_what_was_replaced())


def test_an_unserved_best_of_n_name_lists_both_commands() -> None:
    served = Connections("http://127.0.0.1:1/v1", frozenset({"base", "sft"}))
    with pytest.raises(
        MissingInput, match=r"'sft\+best3' is served, .*train sft EXPER.* and `retroformer train reward "
    ):
        served.model(Endpoint(model="sft+best3"))

"""GRPO as users run it: what it needs, what a kill costs, and an adapter that is served by its name."""

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from collect.rate import rate_reflections
from eval.verify import verify_models
from retroformer.arms import LIVE
from retroformer.assembly import Page, parts
from retroformer.config_file import load
from retroformer.errors import BudgetExhausted, ConfigError, MissingInput
from retroformer.records import Key, Reflection, Task
from retroformer.store import Store, open_store
from serve.adapters import names
from tests.support.characters import attempt_at
from tests.support.endpoint import Body, Endpoint, prompt_of
from tests.support.runs import HOUSEHOLD, facts_of, open_page, write_page
from tests.train.killed import copy_of_run, kill_at, require_alike, train_in
from tests.train.world import AUTHOR, collect, metrics, page, prompt
from train.__main__ import main
from train.alarms import first_rings
from train.base import load_base, lora_config

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
QUICK = {"learning_rate": 1e-2, "batch_size": 8, "micro_batch_size": 4, "group": 4, "epochs": 2, "updates": 12}


def fresh_adapters(run: Path, experiment: Any) -> None:
    """As sft and reward leave them, but that they have learnt nothing."""
    from peft import get_peft_model

    for name, scores in (("sft", False), ("reward", True)):
        adapted: Any = get_peft_model(
            load_base(experiment.train, scores=scores), lora_config(experiment.train.lora, scores=scores)
        )
        adapted.save_pretrained(run / name)
    scored = {"train_score_mean": 0.0, "train_score_deviation": 1.0, "held_out_accuracy": 1.0, "held_out_pairs": 50}
    (run / "reward" / "metrics.json").write_text(json.dumps(scored))


def facts_in(folder: Path, made: Path) -> Any:
    store = Store(f"sqlite:///{folder / 'runs/tiny/experience.db'}", load(made).run)
    try:
        return facts_of(store, LIVE)
    finally:
        store.close()


def test_against_the_reward_model_a_killed_run_ends_like_an_unbroken_one(
    tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = page(workplace, tiny_base, grpo=QUICK)
    collect(made)
    fresh_adapters(workplace / "runs/tiny", load(made))
    whole = copy_of_run(workplace)
    kill_at(workplace, "update-000003.pt", "grpo", made)
    broken = train_in(workplace, "grpo", made)
    assert "trained grpo: runs/tiny/grpo (12 prompts, 12 updates, score " in capsys.readouterr().out
    require_alike(broken, train_in(whole, "grpo", made), 3)
    assert broken["history"][-1]["kl"] > 0
    assert broken["alarms"] == first_rings(broken["history"])
    assert all({"alarm_collapse", "alarm_length"} <= facts.keys() for facts in broken["history"])
    main(["grpo", str(made)])
    assert "grpo is already done with these inputs" in capsys.readouterr().out
    served = names(load(made), made)
    assert served.adapters["grpo"] == Path("runs/tiny/grpo")
    assert served.aliases == {"reflector": "grpo"}


def moody_scholar(body: Body) -> str:
    """Knows the answer where the hash of all that it was told is even."""
    knows = hashlib.sha256(prompt_of(body).encode()).digest()[0] % 2 == 0
    return f" I am sure.\nAction 1: Finish[{'Paris' if knows else 'Lyon'}]"


def quiz(folder: Path, base: Path, url: str, **train: Any) -> Path:
    """A page with two questions that the actor has answered wrongly, and the failures in its store."""
    data = folder / "data"
    data.mkdir()
    questions = [{"id": name, "question": f"The capital of {name}?", "answer": "Paris"} for name in ("a", "b")]
    (data / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (data / "docstore.jsonl").write_text('{"title": "Paris", "sentences": ["Paris is a town."]}')
    made = page(folder, base, grpo={**QUICK, "updates": 6, "reward": "live"}, **train)
    content = yaml.safe_load(made.read_text())
    content["environment"] = {"name": "hotpotqa", "data": str(data), "split": "all"}
    content["actor"] = {"kind": "react", "endpoint": {"base_url": url}}
    content["loop"] = {"environment_processes": 1}
    made.write_text(yaml.safe_dump(content))
    experiment = load(made)
    store = open_store(experiment)
    for name in ("a", "b"):
        store.add_trajectory(
            Key(arm="collect", task_id=name), attempt_at(Task(id=name, environment="hotpotqa", split="all"))
        )
        key = Key(arm="collect", task_id=name, trial=1)
        store.add_reflection(key, 0, Reflection(text="Hm.", prompt=prompt(name), author=AUTHOR))
    store.close()
    fresh_adapters(experiment.folder, experiment)
    shutil.rmtree(experiment.folder / "reward")
    return made


def test_on_live_returns_a_killed_run_ends_like_an_unbroken_one_and_pays_for_nothing_twice(
    tiny_base: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROFORMER_CACHE", str(workplace / "cache"))
    with Endpoint(moody_scholar) as scholar:
        made = quiz(workplace, tiny_base, scholar.url)
        whole = copy_of_run(workplace)
        kill_at(workplace, "update-000002.pt", "grpo", made)
        paid = facts_in(workplace, made)
        asked = len(scholar.requests)
        broken = train_in(workplace, "grpo", made)
        found = facts_in(workplace, made)
        # What was in flight when the process was killed is played again, and nothing else.
        assert len(scholar.requests) - asked == len(found.trajectories) - len(paid.trajectories)
        require_alike(broken, train_in(whole, "grpo", made), 2)
        with pytest.raises(BudgetExhausted, match=r"raise collect.tokens and run the same command again"):
            main(["grpo", str(made), "collect.tokens=1", "train.grpo.updates=7"])
    assert found.same_as(facts_in(whole, made))
    assert {update["left_out"] for update in broken["history"]} == {0.0}
    assert any(0 < update["score"] < 1 for update in broken["history"]), "no reward differs, so nothing was learnt"


def test_what_it_needs_is_named(tiny_base: Path, workplace: Path) -> None:
    made = page(workplace, tiny_base, grpo=QUICK)
    with pytest.raises(MissingInput, match=r"No experience at .*run `python -m collect EXPERIMENT.yaml` first"):
        main(["grpo", str(made), "train.grpo.reward=live"])
    collect(made, tasks=1, arm="recorded")
    with pytest.raises(
        MissingInput, match=r"No collected failures in .*on tasks that the actor does not solve at once"
    ):
        main(["grpo", str(made), "train.grpo.reward=live"])
    with pytest.raises(MissingInput, match=r"No adapter at runs/tiny/sft: run `python -m train sft"):
        main(["grpo", str(made)])
    fresh_adapters(workplace / "runs/tiny", load(made))
    with pytest.raises(ConfigError, match=r"train.grpo.batch_size=8 is no multiple of train.grpo.group=3: change one"):
        main(["grpo", str(made), "train.grpo.group=3"])


def test_the_embedded_model_learns_from_household_games_and_is_served_by_its_name(workplace: Path) -> None:
    few = {"learning_rate": 1e-3, "batch_size": 4, "micro_batch_size": 4, "group": 4, "updates": 2}
    train = {"quantization": "none", "max_length": 1024, "report_to": "none", "grpo": few}
    content = {**HOUSEHOLD, "run": "tiny", "train": train, "serve": {"port": 0}}
    content["reflector"] = {**content["reflector"], "max_new_tokens": 16}
    with Endpoint() as server:
        made = write_page(workplace, server.url, content)
        asyncio.run(rate_reflections(open_page(made)))
    experiment = load(made)
    fresh_adapters(experiment.folder, experiment)
    main(["grpo", str(made)])
    scored = metrics(workplace, "grpo")
    main(["grpo", str(made), "train.grpo.reward=live"])
    live = metrics(workplace, "grpo")
    for found in (scored, live):
        assert found["updates"] == 2
        assert [update["ratio_furthest_from_1"] for update in found["history"]] == [0.0, 0.0]
    assert scored["history"][0]["gradient_norm"] > 0
    tried = facts_in(workplace, made)
    assert len(tried.trajectories) == len(tried.reflections) > 0
    assert all(one.reflection.author.model == "grpo" for one in tried.reflections)
    own = Page(made, ("reflector.endpoint.base_url=",), load(made, ("reflector.endpoint.base_url=",)))

    async def verified() -> Any:
        store = open_store(own.experiment)
        try:
            async with parts(own, asks_reflector=True) as started:
                return await verify_models(own.experiment, started, store, ["grpo"])
        finally:
            store.close()

    [served] = asyncio.run(verified())
    assert (served.verified, served.adapter_sha256) == (True, live["adapter_sha256"])

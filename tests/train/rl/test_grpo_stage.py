"""GRPO as users run it: inputs, resumption after a kill, and serving of the adapter."""

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from collect.rate import rate_reflections
from eval.play.verify import verify_models
from retroformer.config.file import Config, load
from retroformer.config.parts import parts
from retroformer.errors import BudgetExhausted, ConfigError, MissingInput
from retroformer.method.records import Key, Reflection, Task
from retroformer.run.arm_names import LIVE
from retroformer.run.store import Store, open_store
from serve.served_names import served_names
from tests.support.characters import attempt_at
from tests.support.endpoint import Body, Endpoint, prompt_of
from tests.support.facts import add_trajectory
from tests.support.runs import HOUSEHOLD, facts_of, open_config, write_config
from tests.train.killed import copy_of_run, kill_at, require_alike, train_in
from tests.train.world import AUTHOR, collect, config_file, metrics, prompt
from train.__main__ import main
from train.base import add_fresh_adapter, load_base
from train.rl.alarms import first_alarms

QUICK = {"learning_rate": 1e-2, "batch_size": 8, "group": 4, "epochs": 2, "updates": 12}


def fresh_adapters(run: Path, experiment: Any) -> None:
    """Save untrained adapters of sft and reward, with their metrics."""
    for name, scores in (("sft", False), ("reward", True)):
        adapted = add_fresh_adapter(load_base(experiment.train, scores=scores), experiment.train.lora, scores=scores)
        adapted.save_pretrained(run / name)
    scored = {"train_score_mean": 0.0, "train_score_deviation": 1.0, "held_out_accuracy": 1.0, "held_out_pairs": 50}
    (run / "reward" / "metrics.json").write_text(json.dumps(scored))


def facts_in(folder: Path, config: Path) -> Any:
    store = Store(f"sqlite:///{folder / 'runs/tiny/experience.db'}", load(config).run)
    try:
        return facts_of(store, LIVE)
    finally:
        store.close()


@pytest.mark.slow  # The one on live returns is not.
def test_a_killed_run_against_the_reward_model_ends_like_an_unbroken_one(
    tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_file(workplace, tiny_base, grpo=QUICK)
    collect(config)
    fresh_adapters(workplace / "runs/tiny", load(config))
    whole = copy_of_run(workplace)
    kill_at(workplace, "update-000003.pt", "grpo", config)
    broken = train_in(workplace, "grpo", config)
    assert "trained grpo: runs/tiny/grpo (12 prompts, 12 updates, score " in capsys.readouterr().out
    require_alike(broken, train_in(whole, "grpo", config), 3)
    assert broken["history"][-1]["kl"] > 0
    assert broken["alarms"] == first_alarms(broken["history"])
    assert all({"alarm_collapse", "alarm_length"} <= facts.keys() for facts in broken["history"])
    main(["grpo", str(config)])
    assert "grpo is already done with these inputs" in capsys.readouterr().out
    served = served_names(load(config))
    assert served.adapters["grpo"] == Path("runs/tiny/grpo")
    assert served.aliases == {"reflector": "grpo"}


def test_a_milestone_is_the_policy_of_a_run_that_ends_there_also_after_a_kill(
    tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_file(workplace, tiny_base, grpo=QUICK | {"updates": 4, "milestones": [1, 3]})
    collect(config)
    fresh_adapters(workplace / "runs/tiny", load(config))
    kill_at(workplace, "update-000002.pt", "grpo", config)
    train_in(workplace, "grpo", config)
    for updates in (1, 3):
        override = [f"train.grpo.updates={updates}", "train.grpo.milestones=[]", "train.variants.grpo=ends"]
        main(["grpo", str(config), *override])
        ended, passed = (
            json.loads((workplace / f"runs/tiny/grpo-{variant}/metrics.json").read_text())
            for variant in ("ends", f"at{updates}")
        )
        assert passed["adapter_sha256"] == ended["adapter_sha256"]
        assert passed["updates"] == len(passed["history"]) == updates
    assert {"grpo", "grpo-at1", "grpo-at3"} <= served_names(load(config)).adapters.keys()
    capsys.readouterr()
    main(["grpo", str(config), "train.grpo.milestones=[]"])
    assert "grpo is already done with these inputs" in capsys.readouterr().out
    with pytest.raises(MissingInput, match=r"grpo-at2 can only be made by training again, as grpo has taken 4 updates"):
        main(["grpo", str(config), "train.grpo.milestones=[1, 2]"])
    with pytest.raises(ConfigError, match="the milestone 4 is not below updates=4: leave it out"):
        load(config, ["train.grpo.milestones=[2, 4]"])


def moody_scholar(body: Body) -> str:
    """An actor that knows the answer if the hash of its prompt is even."""
    knows = hashlib.sha256(prompt_of(body).encode()).digest()[0] % 2 == 0
    return f" I am sure.\nAction 1: Finish[{'Paris' if knows else 'Lyon'}]"


def quiz(folder: Path, base: Path, url: str, **train: Any) -> Path:
    """Write a config with two questions, and store the actor's wrong answers."""
    data = folder / "data"
    data.mkdir()
    questions = [{"id": name, "question": f"The capital of {name}?", "answer": "Paris"} for name in ("a", "b")]
    (data / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (data / "docstore.jsonl").write_text('{"title": "Paris", "sentences": ["Paris is a town."]}')
    config = config_file(folder, base, grpo={**QUICK, "updates": 6, "reward": "live"}, **train)
    content = yaml.safe_load(config.read_text())
    content["environment"] = {"name": "hotpotqa", "data": str(data), "split": "all"}
    content["actor"] = {"kind": "react", "endpoint": {"base_url": url}}
    config.write_text(yaml.safe_dump(content))
    experiment = load(config)
    store = open_store(experiment)
    for name in ("a", "b"):
        add_trajectory(
            store, Key(arm="collect", task_id=name), attempt_at(Task(id=name, environment="hotpotqa", split="all"))
        )
        key = Key(arm="collect", task_id=name, trial=1)
        store.add_reflection(key, 0, Reflection(text="Hm.", prompt=prompt(name), author=AUTHOR))
    store.close()
    fresh_adapters(experiment.folder, experiment)
    shutil.rmtree(experiment.folder / "reward")
    return config


@pytest.mark.slow
def test_a_killed_run_on_live_returns_ends_like_an_unbroken_one_and_repeats_no_rollout(
    tiny_base: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROFORMER_CACHE", str(workplace / "cache"))
    with Endpoint(moody_scholar) as scholar:
        config = quiz(workplace, tiny_base, scholar.url)
        whole = copy_of_run(workplace)
        kill_at(workplace, "update-000002.pt", "grpo", config)
        paid = facts_in(workplace, config)
        asked = len(scholar.requests)
        broken = train_in(workplace, "grpo", config)
        after = facts_in(workplace, config)
        # Only rollouts that were in flight at the kill are repeated.
        assert len(scholar.requests) - asked == len(after.trajectories) - len(paid.trajectories)
        require_alike(broken, train_in(whole, "grpo", config), 2)
        with pytest.raises(BudgetExhausted, match=r"raise collect.tokens and run the same command again"):
            main(["grpo", str(config), "collect.tokens=1", "train.grpo.updates=7"])
    assert after.same_as(facts_in(whole, config))
    assert {update["left_out"] for update in broken["history"]} == {0.0}
    assert any(0 < update["score"] < 1 for update in broken["history"]), "no reward differs, so nothing was learnt"


def test_errors_name_the_missing_inputs(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base, grpo=QUICK)
    with pytest.raises(MissingInput, match=r"No experience at .*run `retroformer collect EXPERIMENT.yaml` first"):
        main(["grpo", str(config), "train.grpo.reward=live"])
    collect(config, tasks=1, arm="recorded")
    with pytest.raises(
        MissingInput, match=r"No collected failures in .*on tasks that the actor does not solve at once"
    ):
        main(["grpo", str(config), "train.grpo.reward=live"])
    with pytest.raises(MissingInput, match=r"No adapter at runs/tiny/sft: run `retroformer train sft"):
        main(["grpo", str(config)])
    fresh_adapters(workplace / "runs/tiny", load(config))
    with pytest.raises(ConfigError, match=r"train.grpo.batch_size=8 is no multiple of train.grpo.group=3: change one"):
        main(["grpo", str(config), "train.grpo.group=3"])
    with pytest.raises(ConfigError, match=r"train.attention=flex needs a GPU, and this machine has none: set train."):
        main(["grpo", str(config), "train.attention=flex"])


@pytest.mark.slow
def test_the_embedded_model_learns_from_household_games_and_is_served_by_its_name(workplace: Path) -> None:
    few = {"learning_rate": 1e-3, "batch_size": 4, "group": 4, "updates": 2}
    train = {"quantization": "none", "max_length": 1024, "report_to": "none", "grpo": few}
    content = {**HOUSEHOLD, "run": "tiny", "train": train, "serve": {"port": 0}}
    content["reflector"] = {**content["reflector"], "max_new_tokens": 16}
    with Endpoint() as server:
        config = write_config(workplace, server.url, content)
        asyncio.run(rate_reflections(open_config(config)))
    experiment = load(config)
    fresh_adapters(experiment.folder, experiment)
    main(["grpo", str(config)])
    scored = metrics(workplace, "grpo")
    main(["grpo", str(config), "train.grpo.reward=live"])
    live = metrics(workplace, "grpo")
    for finished in (scored, live):
        assert finished["updates"] == 2
        assert [update["ratio_furthest_from_1"] for update in finished["history"]] == [0.0, 0.0]
    assert scored["history"][0]["gradient_norm"] > 0
    tried = facts_in(workplace, config)
    assert len(tried.trajectories) == len(tried.reflections) > 0
    assert all(stored.reflection.author.model == "grpo" for stored in tried.reflections)
    own = Config(config, ("reflector.endpoint.base_url=",), load(config, ("reflector.endpoint.base_url=",)))

    async def verified() -> Any:
        store = open_store(own.experiment)
        try:
            async with parts(own, asks_reflector=True) as started:
                return await verify_models(own.experiment, started, store, ["grpo"])
        finally:
            store.close()

    [served] = asyncio.run(verified())
    assert (served.verified, served.adapter_sha256) == (True, live["adapter_sha256"])

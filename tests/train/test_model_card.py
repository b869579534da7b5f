"""Model cards of adapters; tests/test_golden_run.py loads adapters as their cards say."""

import json
from pathlib import Path

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.run.provenance import folder_sha256
from tests.train.world import config_file, save_adapter, tiny_experiment
from train.model_card import adapter_card
from train.stage import Stage, make_stage, publish

MEASURED = {
    "samples": 1234,
    "losses": [2.5, 1.0, 0.25],
    "history": [{"kl": 0.0}, {"kl": 1.5, "late": 3.0}],
    "held_out_tasks": ["a", "b"],
    "kinds": {"places": 7},
    "training_domains": [{"environment": "shop", "seed": seed, "tasks": ["a", "b"]} for seed in range(3)],
    "where": "/home/somebody/runs",
    "seconds": 12.5,
}


def stage_of(experiment: Experiment, name: str = "sft") -> Stage:
    return make_stage(name, experiment, ["text"], {})


def card_of(experiment: Experiment, base: Path, name: str = "sft") -> str:
    stage = stage_of(experiment, name)
    code = {"commit": "0123abc", "dirty": True}
    facts = {"stage": name, "inputs": stage.inputs, **MEASURED, "adapter_sha256": "ad" * 32, "code": code}
    return adapter_card(experiment, base, facts)


def test_a_card_shows_counts_settings_measures_hashes_and_commit(tiny_base: Path, workplace: Path) -> None:
    card = card_of(tiny_experiment(workplace, tiny_base), tiny_base)
    for line in (
        "# sft of run tiny",
        "**Made by** `retroformer train sft config.yaml` (the file beside this card) at commit 0123abc, with changes",
        "| lora.rank | 4 |",
        "| optimizer.learning_rate | 0.003 |",
        "| samples | 1,234 |",
        "| losses | 2.5 to 0.25 |",
        "| history.kl | 0 to 1.5 |",
        "| held_out_tasks | 2 |",
        "| kinds.places | 7 |",
        "| training_domains.shop | 6 |",
        "| seconds | 12.5 |",
        f"| this adapter | `{'ad' * 32}` |",
        f"| the base | `{folder_sha256(tiny_base)}` |",
        "ALFWorld and ALFRED, whose games were played: MIT.",
    ):
        assert line in card


def test_a_card_names_no_path_no_endpoint_and_no_key(tiny_base: Path, workplace: Path) -> None:
    experiment = load(
        config_file(workplace, tiny_base),
        ["reflector.endpoint.base_url=http://secret-host/v1", "reflector.endpoint.api_key_env=SECRET_KEY"],
    )
    card = card_of(experiment, tiny_base)
    assert tiny_base.name in card
    for private in (str(tiny_base.parent), str(workplace), "/home", "secret-host", "SECRET_KEY"):
        assert private not in card


def test_a_base_on_the_hub_is_linked_with_its_licence(tiny_base: Path, tmp_path: Path) -> None:
    experiment = tiny_experiment(tmp_path, tiny_base)
    embedded = experiment.model_copy(update={"train": experiment.train.model_copy(update={"base_model": "embedded"})})
    facts = {"inputs": stage_of(experiment).inputs, "adapter_sha256": "", "code": {"commit": "", "dirty": False}}
    card = adapter_card(embedded, tiny_base, {"stage": "warm", **facts})
    assert "base_model: HuggingFaceTB/SmolLM2-135M-Instruct\nlicense: apache-2.0\n" in card


def test_the_licence_of_a_base_in_a_folder_is_read_from_its_own_card(tiny_base: Path, tmp_path: Path) -> None:
    experiment = tiny_experiment(tmp_path, tiny_base)
    assert "Base model: not stated in its folder: ask its publisher; it also applies" in card_of(experiment, tiny_base)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    assert "Base model: mit; it also applies" in card_of(experiment, tmp_path)


def test_the_card_of_a_base_with_condensed_positions_warns_about_rope_scaling(tiny_base: Path, tmp_path: Path) -> None:
    experiment = tiny_experiment(tmp_path, tiny_base)
    assert "rope_condense_ratio" not in card_of(experiment, tiny_base)
    (tmp_path / "config.json").write_text(json.dumps({"rope_condense_ratio": 8}))
    assert "needs linear rope scaling by its `rope_condense_ratio`" in card_of(experiment, tmp_path)


def test_the_card_does_not_change_the_hash_of_the_adapter(tiny_base: Path, workplace: Path) -> None:
    experiment = tiny_experiment(workplace, tiny_base)
    stage = stage_of(experiment)
    publish(stage, lambda folder: save_adapter(experiment, folder), {"samples": 1})
    with_card = folder_sha256(stage.folder)
    assert json.loads((stage.folder / "metrics.json").read_text())["adapter_sha256"] == with_card
    (stage.folder / "README.md").unlink()
    assert folder_sha256(stage.folder) == with_card

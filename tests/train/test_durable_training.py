"""Files are synced to disk before they get their final names."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.disk import DiskCalls
from tests.train.world import collect, config_file
from train.__main__ import main
from train.trainer import COMPLETE

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="this system does not tell which file is synced"
)
QUICK: dict[str, Any] = {"learning_rate": 3e-3}
SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("sft", "reward"), QUICK),
    "ppo": {**QUICK, "batch_size": 4, "updates": 2},
    "weak_reward_model": "allow",
}


def test_checkpoints_adapters_and_merged_weights_are_synced_before_they_are_renamed(
    tiny_base: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = config_file(workplace, tiny_base, **SETTINGS), workplace / "runs/tiny"
    collect(config, tasks=8)
    calls = DiskCalls(monkeypatch)
    for stage in ("sft", "reward", "ppo"):
        main([stage, str(config)])
        require_published(calls, run, stage, {"metrics.json", "config.yaml", "README.md", "adapter_config.json"})
    main(["gguf", str(config), "sft"])
    require_published(calls, run, "sft-merged", {"merge.json", "README.md", "config.json", "tokenizer.json"})
    renamed = [call[1:] for call in calls.made if call[0] == "rename"]
    (gguf,) = [(source, target) for source, target in renamed if target == run / "sft.gguf"]
    assert gguf[0] in calls.synced_before(*gguf)
    checkpoints = [target for _, target in renamed if target.suffix == ".pt"]
    assert [path.name for path in checkpoints] == ["update-000001.pt", "update-000002.pt"]
    for path in checkpoints:
        require_in_order(calls, path.with_name("unfinished"), path)
        before = calls.synced_before(path.with_name("unfinished"), path)
        (manifest,) = [source for source, target in renamed if target == path.with_suffix(".json")]
        assert manifest in before, "its manifest could be lost"
    manifests = [(source, target) for source, target in renamed if target.name == COMPLETE]
    assert len(manifests) == 6, "of four steps of sft and two of reward"
    for source, target in manifests:
        before = calls.synced_before(source, target)
        names = {path.name for path in before if path.parent == target.parent}
        assert names >= {"adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"}
        assert {target.parent, target.parent.parent} <= before | calls.synced_after(source, target)


def require_published(calls: DiskCalls, run: Path, name: str, files: set[str]) -> None:
    unfinished = run / f".{name}.unfinished"
    require_in_order(calls, unfinished, run / name)
    synced = {path.name for path in calls.synced_before(unfinished, run / name) if path.parent == unfinished}
    there = {path.name for path in (run / name).iterdir()}
    assert synced == there
    assert there > files
    assert any(file.endswith(".safetensors") for file in there)


def require_in_order(calls: DiskCalls, source: Path, target: Path) -> None:
    assert source in calls.synced_before(source, target)
    assert target.parent in calls.synced_after(source, target)

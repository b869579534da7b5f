"""The commands as users run them: what they need, what they say, and what a kill costs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from retroformer.config_file import load
from retroformer.errors import ConfigError, MissingInput
from retroformer.progress import line
from tests.train.killed import copy_of_run, kill_at, require_alike, train_in
from tests.train.world import collect, metrics, page
from train import inputs
from train.__main__ import main
from train.stage import make_stage
from train.supervised import COMPLETE, Watcher, complete_checkpoints

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


def test_killed_stages_go_on_and_end_like_unbroken_ones(
    tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imitation, reward model and PPO, each killed with SIGKILL in the middle; then the same without a kill."""
    many = {"learning_rate": 3e-3, "batch_size": 4, "micro_batch_size": 4, "epochs": 20}
    made = page(workplace, tiny_base, sft=many, reward=many, ppo={**many, "epochs": 2, "updates": 30})
    collect(made)
    whole = copy_of_run(workplace)
    for stage, checkpoint, step in (
        ("sft", "checkpoint-7/complete", 7),
        ("reward", "checkpoint-7/complete", 7),
        ("ppo", "update-000003.pt", 3),
    ):
        kill_at(workplace, checkpoint, stage, made)
        broken = train_in(workplace, stage, made)
        assert f"trained {stage}: runs/tiny/{stage} (" in capsys.readouterr().out
        assert not list((workplace / "runs/tiny/checkpoints").iterdir())
        require_alike(broken, train_in(whole, stage, made), step)


def test_old_checkpoints_are_deleted_by_their_steps_once_the_new_one_is_complete(tmp_path: Path) -> None:
    """A kill amid the deletion of checkpoint 6 had changed it last; by times of change, 7 would be the oldest."""
    for step, files, seconds in ((6, (COMPLETE,), 3600), (7, ("optimizer.pt", COMPLETE), 0), (8, ("optimizer.pt",), 9)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        for name in files:
            (folder / name).touch()
        os.utime(folder, (seconds, seconds))
    assert [one.name for one in complete_checkpoints(tmp_path)] == ["checkpoint-6", "checkpoint-7"]
    with line("", 8) as shown:
        watcher = Watcher(shown, lambda step, facts: None)
        watcher.on_save(SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=8), None)
    assert {one.name for one in tmp_path.iterdir()} == {"checkpoint-7", "checkpoint-8"}
    assert [one.name for one in complete_checkpoints(tmp_path)] == ["checkpoint-7", "checkpoint-8"]


def test_a_stage_that_ended_between_its_last_step_and_its_publication_goes_on_there(
    tiny_base: Path, workplace: Path
) -> None:
    made = page(workplace, tiny_base)
    collect(made)
    unbroken = train_in(copy_of_run(workplace), "sft", made)
    in_the_way = workplace / "runs/tiny/.sft.unfinished"
    in_the_way.touch()
    with pytest.raises(FileExistsError):
        train_in(workplace, "sft", made)
    in_the_way.unlink()
    require_alike(train_in(workplace, "sft", made), unbroken, unbroken["steps"])


def test_a_finished_stage_is_done_until_its_inputs_change(
    tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = page(workplace, tiny_base, report_to="tensorboard")
    collect(made)
    main(["warm", str(made)])
    assert capsys.readouterr().out.startswith("trained warm: runs/tiny/warm (24 samples, 6 steps, loss ")
    first = metrics(workplace, "warm")
    assert list(workplace.glob("runs/tiny/logs/warm/events*"))
    assert load(workplace / "runs/tiny/warm/config.yaml") == load(made)
    main(["warm", str(made), "train.checkpoint_steps=3"])
    assert capsys.readouterr().out.startswith("warm is already done with these inputs: runs/tiny/warm (24 samples")
    assert metrics(workplace, "warm") == first
    main(["warm", str(made), "train.warm.epochs=2"])
    assert capsys.readouterr().out.startswith("trained warm")
    assert metrics(workplace, "warm")["steps"] == 12


def test_another_process_publishes_an_adapter_of_the_same_hash(tiny_base: Path, workplace: Path) -> None:
    made = page(workplace, tiny_base, lora={"targets": "all-linear"})
    collect(made)
    hashes = set[str]()
    for seed in "12":  # Sets of strings have another order in each.
        told = ENVIRONMENT | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-m", "train", "warm", str(made)], cwd=workplace, env=told, check=True)
        hashes.add(metrics(workplace, "warm")["adapter_sha256"])
        shutil.rmtree(workplace / "runs/tiny/warm")
    assert len(hashes) == 1


def test_stages_start_from_the_adapters_of_those_before(tiny_base: Path, workplace: Path) -> None:
    made = page(workplace, tiny_base)
    collect(made)
    experiment = load(made)
    quick = experiment.train.sft
    (workplace / "adapter").mkdir()
    (workplace / "adapter" / "adapter_config.json").write_text("{}")
    (workplace / "adapter" / "adapter_model.safetensors").write_text("one")
    one = make_stage("sft", experiment, quick, ["text"], {"start": workplace / "adapter"}).fingerprint
    (workplace / "adapter" / "adapter_model.safetensors").write_text("two")
    two = make_stage("sft", experiment, quick, ["text"], {"start": workplace / "adapter"}).fingerprint
    assert len({one, two, make_stage("sft", experiment, quick, ["text"], {}).fingerprint}) == 3


def test_no_experience_at_all_names_the_command_that_makes_it(tiny_base: Path, workplace: Path) -> None:
    made = str(page(workplace, tiny_base))
    for stage, command in (("warm", "collect warm"), ("sft", "collect"), ("reward", "collect"), ("ppo", "collect")):
        with pytest.raises(MissingInput, match=f"No experience at runs/tiny/experience.db: run `python -m {command} "):
            main([stage, made])
    assert not (workplace / "runs").exists(), "a stage that only reads has made a store"


def test_nothing_rated_positive_is_said_with_the_counts(tiny_base: Path, workplace: Path) -> None:
    made = page(workplace, tiny_base)
    collect(made, tasks=3, rate=lambda text: 0.0)
    with pytest.raises(MissingInput, match=r"No positively rated .* \(6 are rated, 0 positive, 0 negative, 6 zero\)"):
        inputs.positive_reflections(load(made))
    with pytest.raises(MissingInput, match=r"No preference pairs .* \(6 reflections are rated, .*ties make no pairs"):
        inputs.pairs(load(made))


def test_ppo_without_adapters_names_the_stage_to_run(tiny_base: Path, workplace: Path) -> None:
    made = page(workplace, tiny_base)
    collect(made, tasks=1)
    with pytest.raises(MissingInput, match=r"No adapter at runs/tiny/sft: run `python -m train sft"):
        main(["ppo", str(made)])


def test_a_batch_that_micro_batches_do_not_fill_is_refused(tiny_base: Path, workplace: Path) -> None:
    made = page(workplace, tiny_base)
    collect(made, tasks=1)
    with pytest.raises(ConfigError, match=r"train.sft.batch_size=4 is no multiple of train.sft.micro_batch_size=3"):
        main(["sft", str(made), "train.sft.micro_batch_size=3"])


def test_an_unknown_stage_is_answered_with_the_stages() -> None:
    with pytest.raises(ConfigError, match="Name a stage: actor, warm, sft, reward, ppo"):
        main(["train"])


def test_each_stage_reads_what_it_is_for(tiny_base: Path, workplace: Path) -> None:
    made = page(workplace, tiny_base)
    collect(made, tasks=5)
    experiment = load(made)
    assert len(inputs.written_advice(experiment)) == 10
    assert len(inputs.positive_reflections(experiment)) == 5
    assert len(inputs.pairs(experiment)) == 5
    assert len(inputs.prompts(experiment)) == 5


def test_a_later_round_trains_on_all_rounds_and_leaves_the_first_as_it_is(tiny_base: Path, workplace: Path) -> None:
    made = page(workplace, tiny_base)
    collect(made, tasks=3)
    collect(made, tasks=2, arm="collect 2")
    assert len(inputs.positive_reflections(load(made))) == 3
    assert len(inputs.positive_reflections(load(made, ["round=2"]))) == 5
    assert len(inputs.pairs(load(made, ["round=2"]))) == 5
    main(["sft", str(made)])
    main(["sft", str(made), "round=2"])
    assert metrics(workplace, "sft")["samples_with_duplicates"] == 3
    assert metrics(workplace, "sft-2")["samples_with_duplicates"] == 5
    with pytest.raises(MissingInput, match=r"No adapter at runs/tiny/reward-2: run `python -m train reward"):
        main(["ppo", str(made), "round=2"])

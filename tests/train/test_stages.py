"""The commands as users run them: inputs, messages, and resumption after a kill."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.errors import MissingInput
from retroformer.run.progress import line
from retroformer.run.provenance import folder_sha256
from retroformer.run.stage_metrics import StageMetrics, training_tasks
from tests.train.killed import copy_of_run, kill_at, require_alike, train_in
from tests.train.world import collect, config_file, metrics
from train.__main__ import main
from train.adapter import Adapter, require_adapter
from train.data import inputs
from train.stage import make_stage, replacing
from train.trainer import COMPLETE, Watcher, complete_checkpoints

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow  # A shorter one: GRPO in rl/test_grpo_stage.py.
def test_killed_stages_resume_and_end_like_unbroken_ones(
    tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imitation, reward model and PPO are each killed in the middle, and compared with unbroken runs."""
    many = {"learning_rate": 3e-3, "epochs": 6}
    config = config_file(
        workplace, tiny_base, sft=many, reward=many, ppo={**many, "batch_size": 4, "epochs": 2, "updates": 12}
    )
    collect(config)
    whole = copy_of_run(workplace)
    for stage, checkpoint, step in (
        ("sft", "checkpoint-7/complete", 7),
        ("reward", "checkpoint-7/complete", 7),
        ("ppo", "update-000003.pt", 3),
    ):
        kill_at(workplace, checkpoint, stage, config)
        broken = train_in(workplace, stage, config)
        assert f"trained {stage}: runs/tiny/{stage} (" in capsys.readouterr().out
        left = [path.name for path in (workplace / "runs/tiny/checkpoints").iterdir() if path.suffix != ".lock"]
        assert not left, "the checkpoints of a finished stage are deleted"
        require_alike(broken, train_in(whole, stage, config), step)


def test_old_checkpoints_are_deleted_by_step_once_a_new_one_is_complete(tmp_path: Path) -> None:
    """A kill during the deletion of checkpoint 6 changed it last, so by modification time 7 would be the oldest."""
    for step, files, seconds in ((6, (COMPLETE,), 3600), (7, ("optimizer.pt", COMPLETE), 0), (8, ("optimizer.pt",), 9)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        for name in files:
            (folder / name).touch()
        os.utime(folder, (seconds, seconds))
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["checkpoint-6", "checkpoint-7"]
    with line("", 8) as shown:
        watcher = Watcher(shown, lambda step, facts: None)
        watcher.on_save(SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=8), None)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-7", "checkpoint-8"}
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["checkpoint-7", "checkpoint-8"]


@pytest.mark.slow
def test_a_stage_killed_between_its_last_step_and_publication_resumes(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config)
    unbroken = train_in(copy_of_run(workplace), "sft", config)
    in_the_way = workplace / "runs/tiny/.sft.unfinished"
    in_the_way.touch()
    with pytest.raises(FileExistsError):
        train_in(workplace, "sft", config)
    in_the_way.unlink()
    require_alike(train_in(workplace, "sft", config), unbroken, unbroken["steps"])


def test_an_adapter_that_a_killed_publication_moved_aside_is_back_at_the_start(
    tiny_base: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_file(workplace, tiny_base)
    collect(config)
    main(["sft", str(config)])
    folder = load(config).stage_folder("sft")
    before = folder_sha256(folder)
    folder.rename(folder.with_name(".sft.replaced"))
    main(["sft", str(config)])
    assert folder_sha256(folder) == before

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), replacing(folder) as unfinished:
        (unfinished / "weights").touch()
    monkeypatch.setattr(os, "fsync", fsync)
    assert folder_sha256(folder) == before


def test_a_finished_stage_is_done_until_its_inputs_change(
    tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = config_file(workplace, tiny_base, report_to="tensorboard")
    collect(config, tasks=24)
    main(["warm", str(config)])
    assert capsys.readouterr().out.startswith("trained warm: runs/tiny/warm (48 samples, 12 steps, loss ")
    first = metrics(workplace, "warm")
    assert list(workplace.glob("runs/tiny/logs/warm/events*"))
    assert load(workplace / "runs/tiny/warm/config.yaml") == load(config)
    main(["warm", str(config), "train.checkpoint_steps=3"])
    assert capsys.readouterr().out.startswith("warm is already done with these inputs: runs/tiny/warm (48 samples")
    assert metrics(workplace, "warm") == first
    assert not caplog.messages
    main(["warm", str(config), "train.batch_size=2", "train.lora.alpha=64"])
    again = "runs/tiny/warm has other inputs now (batch_size, lora.alpha): it is trained again, from the start."
    assert again in caplog.messages
    assert capsys.readouterr().out.startswith("trained warm")
    assert metrics(workplace, "warm")["steps"] == 24
    curve = EventAccumulator(str(workplace / "runs/tiny/logs/warm")).Reload()
    assert [event.step for event in curve.Scalars("loss")] == [*range(1, 25)], "steps of the earlier run are shown, too"
    rates = [event.value for event in curve.Scalars("learning_rate")]
    # It rises in two steps, 5 % of them, the first of which teaches, too.
    assert rates == pytest.approx([0.5e-3, 1e-3, *(1e-3 * left / 22 for left in range(22, 0, -1))])


def test_a_stage_records_the_tasks_that_it_and_its_adapters_were_trained_on(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=4, arm="recorded")
    warm = train_in(workplace, "warm", config)
    collect(config, tasks=3)
    sft = train_in(workplace, "sft", config)
    early, late = [
        [f"{arm} task-{number}" for number in range(count)] for arm, count in (("recorded", 4), ("collect", 3))
    ]
    assert warm["training_domains"] == [{"environment": "alfworld", "seed": 0, "tasks": early}]
    assert sft["training_domains"] == [{"environment": "alfworld", "seed": 0, "tasks": sorted(late + early)}]
    assert "| training_domains.alfworld | 7 |" in (workplace / "runs/tiny/sft/README.md").read_text()
    # Another run starts from this adapter, with tasks of its own.
    experiment, start = load(config), {"start": require_adapter(workplace / "runs/tiny/sft")}
    another = [training_tasks(experiment, ["another"])]
    stage = make_stage("sft", experiment, [], start, another)
    assert stage.tasks == (training_tasks(experiment, ["another", *late, *early]),)


def test_the_tasks_of_a_stage_are_unknown_if_those_of_an_adapter_are(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=2)
    train_in(workplace, "warm", config)
    folder, experiment = workplace / "runs/tiny/warm", load(config)
    facts = json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text(json.dumps({key: facts[key] for key in facts if key != "training_domains"}))
    another = [training_tasks(experiment, ["another"])]
    assert make_stage("sft", experiment, [], {"start": require_adapter(folder)}, another).tasks is None
    assert make_stage("sft", experiment, [], {}, another).tasks == tuple(another)
    assert make_stage("sft", experiment, [], {}).tasks is None


@pytest.mark.slow
def test_another_process_publishes_an_adapter_of_the_same_hash(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base, lora={"targets": "all-linear"})
    collect(config)
    hashes = set[str]()
    command = [sys.executable, "-m", "train", "warm", str(config)]
    # Sets of strings have another order with each seed.
    seeds = {"1": workplace, "2": copy_of_run(workplace)}
    running = [
        subprocess.Popen(command, cwd=folder, env=ENVIRONMENT | {"PYTHONHASHSEED": seed})
        for seed, folder in seeds.items()
    ]
    assert [process.wait() for process in running] == [0, 0]
    for folder in seeds.values():
        hashes.add(metrics(folder, "warm")["adapter_sha256"])
    assert len(hashes) == 1


def test_stages_start_from_the_adapters_of_earlier_stages(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config)
    experiment = load(config)
    first, second = (
        make_stage("sft", experiment, ["text"], {"start": Adapter(workplace, sha256, StageMetrics())}).fingerprint
        for sha256 in ("first", "second")
    )
    assert len({first, second, make_stage("sft", experiment, ["text"], {}).fingerprint}) == 3


def test_the_error_for_a_missing_store_names_its_command(tiny_base: Path, workplace: Path) -> None:
    config = str(config_file(workplace, tiny_base))
    for stage, command in (("warm", "collect warm"), ("sft", "collect"), ("reward", "collect"), ("ppo", "collect")):
        with pytest.raises(MissingInput, match=f"No experience at runs/tiny/experience.db: .* `retroformer {command} "):
            main([stage, config])
    assert not (workplace / "runs").exists(), "a stage that only reads has made a store"


def test_the_error_without_positive_ratings_shows_the_counts(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=3, rate=lambda text: 0.0)
    with pytest.raises(MissingInput, match=r"No positively rated .*, 0 negative, 6 zero\): .* collect warm"):
        inputs.positive_reflections(load(config))
    with pytest.raises(MissingInput, match=r"No preference pairs .* \(6 reflections are rated, .*ties make no pairs"):
        inputs.pairs(load(config))


def test_the_error_of_ppo_without_adapters_names_the_stage_to_run(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=1)
    with pytest.raises(MissingInput, match=r"No adapter at runs/tiny/sft: run `retroformer train sft"):
        main(["ppo", str(config)])


def test_each_stage_reads_its_own_inputs(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=5)
    experiment = load(config)
    assert len(inputs.written_advice(experiment)) == 10
    assert len(inputs.positive_reflections(experiment)) == 5
    assert len(inputs.pairs(experiment)) == 5
    assert len(inputs.prompts(experiment)) == 5


@pytest.mark.parametrize(
    ("stage", "count", "own", "expected"),
    [
        ("sft", 30, {}, (8, 1e-3, 8)),
        ("sft", 100, {}, (8, 1e-3, 3)),
        ("sft", 1000, {}, (31, 1e-3, 1)),
        ("dpo", 10_000, {}, (32, 1e-4, 1)),
        ("ppo", 30, {}, (None, 3e-4, 4)),
        ("grpo", 30, {}, (None, 3e-4, 1)),
        ("grpo", 30, {"grpo": {"learning_rate": 1e-5}}, (None, 1e-5, 1)),
        ("sft", 30, {"batch_size": 32, "sft": {"learning_rate": 1e-5, "epochs": 2}}, (32, 1e-5, 2)),
    ],
)
def test_what_a_config_omits_fits_the_base_and_the_number_of_texts(
    workplace: Path, stage: str, count: int, own: dict[str, Any], expected: tuple[float | None, ...]
) -> None:
    config = Experiment.model_validate({"environment": {"name": "agent"}, "run": "fit", "train": own})
    # Texts that are there twice are trained on once.
    made = make_stage(stage, config, 2 * [f"text {number}" for number in range(count)], {})
    steps = made.steps
    assert (made.experiment.train.batch_size, steps.learning_rate, steps.epochs) == expected
    assert made.inputs["batch_size"] == expected[0]
    assert made.inputs["optimizer"]["learning_rate"] == expected[1]


def test_steps_that_cannot_move_the_weights_are_named_before_they_are_taken(
    tiny_base: Path, workplace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_file(workplace, tiny_base, sft={"learning_rate": 1e-5, "epochs": 2})
    collect(config)
    main(["sft", str(config)])
    (warning,) = [record.getMessage() for record in caplog.records if "hardly" in record.getMessage()]
    assert warning.startswith(
        "sft takes 6 steps with a learning rate of 1e-05, which will hardly change this base (0.002 is usual): leave "
    )
    caplog.clear()
    main(["sft", str(config), "train.sft.learning_rate=0.01"])
    assert "hardly" not in caplog.text


def test_a_later_round_trains_on_all_rounds_and_keeps_the_first_adapters(
    tiny_base: Path, workplace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=3)
    collect(config, tasks=2, arm="collect 2")
    assert len(inputs.positive_reflections(load(config))) == 3
    assert "Only 3 of 6 rated reflections helped, and SFT needs some 20 to imitate: let a stronger model" in caplog.text
    assert len(inputs.positive_reflections(load(config, ["round=2"]))) == 5
    assert len(inputs.pairs(load(config, ["round=2"]))) == 5
    assert {pair.task_id[:9] for pair in inputs.pairs(load(config, ["round=2", "train.iterated=true"]))} == {
        "collect 2"
    }
    main(["sft", str(config)])
    main(["sft", str(config), "round=2"])
    assert metrics(workplace, "sft")["samples_with_duplicates"] == 3
    assert metrics(workplace, "sft-2")["samples_with_duplicates"] == 5
    with pytest.raises(MissingInput, match=r"No adapter at runs/tiny/reward-2: run `retroformer train reward"):
        main(["ppo", str(config), "round=2"])

"""Test that the typed config is validated as a whole: one message lists every fault and suggests the right key."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from retroformer.config.experiment import Experiment
from retroformer.config.file import load, load_domains
from retroformer.config.sections.train import Grpo, Ppo, Updates
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.environments.hotpotqa.environment import Hotpotqa
from retroformer.errors import ConfigError, MissingInput
from tests.support.runs import ROOT

SMALLEST = "run: toy\nenvironment: {name: alfworld}\n"


def config_file(folder: Path, text: str = SMALLEST) -> Path:
    path = folder / "toy.yaml"
    path.write_text(text)
    return path


def faults_of(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(config_file(folder, text), overrides)
    return str(refused.value)


def test_the_smallest_config_gets_the_papers_defaults(tmp_path: Path) -> None:
    experiment = load(config_file(tmp_path))
    assert (experiment.loop.trials, experiment.collect.candidates, experiment.reflector.temperature) == (3, 2, 0.9)
    assert (experiment.actor.temperature, experiment.environment.max_steps) == (0.0, 50)
    assert experiment.train.quantization == "nf4"
    assert [arm.kind for arm in experiment.eval.arms.values()] == ["none", "model", "model", "placebo"]
    assert experiment.folder == Path("runs/toy")
    assert experiment.store_url == "sqlite:///runs/toy/experience.db"


def test_omitted_settings_of_a_stage_are_its_defaults(tmp_path: Path) -> None:
    train = load(config_file(tmp_path), ["train.ppo.kl=0.1", "train.grpo={reward: live}"]).train
    whole = load(config_file(tmp_path)).train
    assert train.ppo == whole.ppo.model_copy(update={"kl": 0.1})
    assert train.grpo == whole.grpo.model_copy(update={"reward": "live"})
    assert train.sft == whole.sft
    assert "train.sft: Input should be a valid dictionary" in faults_of(tmp_path, SMALLEST, "train.sft=3")
    assert "train: Input should be a valid dictionary" in faults_of(tmp_path, SMALLEST, "train=3")


def test_tokens_come_from_the_whole_distribution(tmp_path: Path) -> None:
    fault = faults_of(
        tmp_path, SMALLEST, "train.grpo.reward=stored", "reflector.endpoint.extra_body={top_p: 0.9, top_k: 5}"
    )
    assert "leave top_k, top_p out of reflector.endpoint.extra_body" in fault


def test_a_teacher_has_an_address_and_a_name_and_writes_no_tokens_of_the_reflector(tmp_path: Path) -> None:
    for half in ("model: big", "base_url: http://127.0.0.1:1/v1"):
        fault = faults_of(tmp_path, SMALLEST, f"reflector.teacher={{{half}}}")
        assert "reflector.teacher: a teacher is a model elsewhere: give its base_url and its m" in fault
    teacher = "reflector.teacher={base_url: http://127.0.0.1:1/v1, model: big, api_key_env: TEACHER_KEY}"
    assert "leave reflector.teacher out" in faults_of(tmp_path, SMALLEST, teacher, "train.grpo.reward=stored")
    experiment = load(config_file(tmp_path), [teacher])
    assert "TEACHER_KEY" in experiment.key_variables
    assert load(config_file(tmp_path), [teacher, "reflector.teacher="]).reflector.collector.model == "base"


def test_an_empty_section_equals_a_missing_one(tmp_path: Path) -> None:
    whole = load(config_file(tmp_path))
    assert load(config_file(tmp_path, SMALLEST + "train:\neval:\n")) == whole
    assert load(config_file(tmp_path, SMALLEST + "train: {ppo: , lora: }\n")) == whole
    assert load(config_file(tmp_path, SMALLEST + "train:\n"), ["train.ppo.kl=0.1"]).train.ppo.kl == 0.1
    assert "environment: " in faults_of(tmp_path, "run: toy\nenvironment:\n")


def test_a_key_that_comes_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    twice = SMALLEST + "train: {ppo: {kl: 0.5}}\nloop: {trials: 2}\ntrain: {sft: {epochs: 3}}\n"
    assert "the key 'train' comes twice" in faults_of(tmp_path, twice)
    assert f"line {twice.count(chr(10))}," in faults_of(tmp_path, twice)
    assert "the key 'kl' comes twice" in faults_of(tmp_path, SMALLEST + "train: {ppo: {kl: 0.5, kl: 0.6}}\n")


def test_a_store_elsewhere_is_named_by_its_url(tmp_path: Path) -> None:
    assert load(config_file(tmp_path), ["store=postgresql://db/x"]).store_url == "postgresql://db/x"


def test_the_name_of_the_environment_chooses_its_section(tmp_path: Path) -> None:
    assert isinstance(load(config_file(tmp_path)).environment, Alfworld)
    assert isinstance(load(config_file(tmp_path), ["environment.name=hotpotqa"]).environment, Hotpotqa)


def test_the_error_for_a_misspelt_key_suggests_the_right_one(tmp_path: Path) -> None:
    message = faults_of(tmp_path, SMALLEST + "collect: {candidate: 3}\n")
    assert message.splitlines()[0] == f"{tmp_path / 'toy.yaml'} does not describe an experiment:"
    assert "  collect.candidate: " in message
    assert message.endswith("Did you mean `candidates`?")


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("enviroment=x", "environment"),
        ("environment.splitt=train", "split"),
        ("actor.endpoint.baseurl=http://x/v1", "base_url"),
        ("train.lora.rnk=4", "rank"),
        ("train.ppo.update=4", "updates"),
        ("eval.arms.first.knd=none", "kind"),
    ],
)
def test_a_misspelt_key_is_found_at_every_depth(tmp_path: Path, override: str, meant: str) -> None:
    assert f"{override.partition('=')[0]}: " in (message := faults_of(tmp_path, SMALLEST, override))
    assert f"Did you mean `{meant}`?" in message


def test_the_error_for_an_unknown_key_lists_the_keys(tmp_path: Path) -> None:
    message = faults_of(tmp_path, SMALLEST, "serve.xyzzyx=1")
    keys = "adapters, api_key_env, best_of, controller, dtype, engine, gpu_share, hand_over, host, port, vllm"
    assert f"Allowed keys: {keys}." in message


def test_every_fault_is_in_one_message(tmp_path: Path) -> None:
    message = faults_of(tmp_path, SMALLEST, "actor.temperature=-1", "loop.trials=0", "collect.candidate=2", "run=a/b")
    assert len(message.splitlines()) == 1 + 4
    assert "  actor.temperature: Input should be greater than or equal to 0. Found -1." in message
    assert "  loop.trials: Input should be greater than or equal to 1. Found 0." in message
    assert "  run: String should match pattern" in message


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    assert "  run: Field required." in faults_of(tmp_path, "environment: {name: alfworld}\n")
    assert "  environment: " in faults_of(tmp_path, "run: toy\nenvironment: {}\n")


def test_the_error_for_an_unknown_environment_lists_the_environments(tmp_path: Path) -> None:
    assert "No environment 'chess'. Choose one of agent, alfworld, " in faults_of(
        tmp_path, "run: toy\nenvironment: {name: chess}\n"
    )
    assert "Did you mean `alfworld`?" in faults_of(tmp_path, "run: toy\nenvironment: {name: alfwrld}\n")
    assert "environment: Give it a name: choose one of agent, " in faults_of(tmp_path, "run: toy\nenvironment: {}\n")


def test_the_error_for_a_misspelt_environment_key_lists_only_keys_of_this_environment(tmp_path: Path) -> None:
    message = faults_of(tmp_path, "run: toy\nenvironment: {name: hotpotqa, xyzzyx: 1}\n")
    assert "environment.xyzzyx: " in message
    listed = message.partition("Allowed keys: ")[2]
    assert "reward" in listed
    assert "grammar" not in listed, "that is a key of another environment"


def test_overrides_are_yaml_and_reach_any_depth(tmp_path: Path) -> None:
    experiment = load(
        config_file(tmp_path),
        ["run=try2", "collect.tokens=1000", "environment.task_types=[pick, two]", "train.checkpoint_steps=2"],
    )
    assert (experiment.run, experiment.collect.tokens) == ("try2", 1000)
    assert experiment.environment == Alfworld(name="alfworld", task_types=("pick", "two"))
    assert experiment.train.checkpoint_steps == 2


def test_an_override_changes_one_of_two_sections_that_share_an_alias(tmp_path: Path) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text(
        "run: toy\nenvironment: {name: alfworld}\ntrain: {dpo: &quick {learning_rate: 0.5, epochs: 4}, sft: *quick}\n"
    )
    train = load(path, ["train.sft.epochs=2"]).train
    assert (train.dpo.epochs, train.sft.epochs) == (4, 2)


def test_the_last_of_two_overrides_counts(tmp_path: Path) -> None:
    assert load(config_file(tmp_path), ["seed=1", "seed=2"]).seed == 2


def test_a_value_may_hold_an_equals_sign(tmp_path: Path) -> None:
    assert load(config_file(tmp_path), ["store=sqlite:///x?a=b"]).store == "sqlite:///x?a=b"


@pytest.mark.parametrize("word", ["split", "=train", "--fast"])
def test_the_error_for_a_malformed_override_shows_the_form(tmp_path: Path, word: str) -> None:
    assert f"{word!r} is not an override: write key=value" in faults_of(tmp_path, SMALLEST, word)


def test_an_override_below_a_value_is_refused(tmp_path: Path) -> None:
    assert "'run' is a value, not a section" in faults_of(tmp_path, SMALLEST, "run.name=x")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("nowhere.yaml", "name a YAML file of configs, configs/paper, or write one with `retroformer init FOLDER`."),
        ("confgs/demo.yml", "did you mean configs/demo.yaml?"),
        ("alfwrld.yaml", "did you mean configs/paper/alfworld.yaml or configs/paper/sala-alfworld.yaml?"),
    ],
)
def test_the_error_for_a_missing_config_names_close_ones_or_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs/paper").mkdir(parents=True)
    for name in ("demo", "paper/alfworld", "paper/sala-alfworld", "paper/webshop"):
        (tmp_path / f"configs/{name}.yaml").touch()
    with pytest.raises(MissingInput) as refused:
        load(Path(asked))
    assert str(refused.value) == f"No experiment config at {asked!r}: {said}"


@pytest.mark.parametrize("text", ["run: [", "\x00", "a: b: c"])
def test_a_config_that_is_not_yaml_is_one_sentence(tmp_path: Path, text: str) -> None:
    assert "is not a YAML file: " in (message := faults_of(tmp_path, text))
    assert "\n" not in message


@pytest.mark.parametrize(("text", "kind"), [("", "NoneType"), ("- a\n- b\n", "list"), ("hello", "str")])
def test_the_error_for_a_config_that_is_not_a_mapping_names_its_type(tmp_path: Path, text: str, kind: str) -> None:
    assert f"expected keys and values, found {kind}." in faults_of(tmp_path, text)


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a YAML file"):
        load(tmp_path)


def test_an_experiment_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(config_file(tmp_path)).seed = 5  # type: ignore[misc]


def test_every_setting_has_a_description() -> None:
    import ast

    from retroformer.config import experiment

    sections = Path(experiment.__file__).with_name("sections")
    silent, written = (
        [],
        [
            node
            for path in (Path(experiment.__file__), *sections.glob("*.py"))
            for node in ast.parse(path.read_text()).body
        ],
    )
    for section in (node for node in written if isinstance(node, ast.ClassDef)):
        for knob, after in zip(section.body, [*section.body[1:], None], strict=True):
            sentence = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(knob, ast.AnnAssign) and isinstance(knob.target, ast.Name) and not sentence:
                silent.append(f"{section.name}.{knob.target.id}")
    nested = {*Experiment.model_fields, "name", "lora", "endpoint"}
    assert [name for name in silent if name.partition(".")[2] not in nested] == []


@pytest.mark.parametrize(("name", "section"), [("ppo", Ppo), ("grpo", Grpo)])
def test_a_search_for_a_key_of_ppo_or_grpo_finds_where_it_is_read(name: str, section: type[Updates]) -> None:
    source = (ROOT / f"train/rl/{name}.py").read_text()
    # Before the updates: what is trained on, and the optimiser. After each: whether the policy is published.
    of_stage = {"reward", "learning_rate", "milestones"}
    assert [key for key in section.model_fields if f"{name}.{key}" not in source and key not in of_stage] == []


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda path: path.stem)
def test_model_and_temperature_of_a_shipped_config_are_read_by_its_commands(path: Path) -> None:
    """Collection reads both from the reflector, evaluation from its arms and eval.temperature."""
    only_evaluates = path.read_text().startswith("# retroformer eval ")
    for experiment in load_domains(path):
        if only_evaluates:
            assert "temperature" not in experiment.reflector.model_fields_set
            assert "model" not in experiment.reflector.endpoint.model_fields_set
        if "temperature" in experiment.eval.model_fields_set:
            assert any(arm.kind == "model" for arm in experiment.eval.arms.values())


def test_the_reflector_of_programs_samples_as_in_the_paper() -> None:
    configs = [load(path) for path in sorted((ROOT / "configs" / "paper").glob("reflexion-*.yaml"))]
    temperatures = {config.run: config.eval.temperature for config in configs if config.eval.temperature}
    assert set(temperatures) == {config.run for config in configs if config.environment.name == "programming"}
    assert set(temperatures.values()) == {0.2}

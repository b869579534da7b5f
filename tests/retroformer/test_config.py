"""One typed page, validated whole: every fault is named at once, with what was meant."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from retroformer.config import Experiment
from retroformer.config_file import load
from retroformer.environments.sections import Alfworld, Hotpotqa
from retroformer.errors import ConfigError, MissingInput
from retroformer.train_sections import Ppo

SMALLEST = "run: toy\nenvironment: {name: alfworld}\n"


def page(folder: Path, text: str = SMALLEST) -> Path:
    path = folder / "toy.yaml"
    path.write_text(text)
    return path


def faults_of(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(page(folder, text), overrides)
    return str(refused.value)


def test_the_smallest_page_gets_the_papers_defaults(tmp_path: Path) -> None:
    experiment = load(page(tmp_path))
    assert (experiment.loop.trials, experiment.collect.candidates, experiment.reflector.temperature) == (3, 2, 0.9)
    assert (experiment.actor.temperature, experiment.environment.max_steps) == (0.0, 50)
    assert experiment.train.quantization == "nf4"
    assert experiment.folder == Path("runs/toy")
    assert experiment.store_url == "sqlite:///runs/toy/experience.db"


def test_what_is_not_said_of_a_stage_is_its_default(tmp_path: Path) -> None:
    train = load(page(tmp_path), ["train.ppo.kl=0.1", "train.grpo={reward: live}"]).train
    whole = load(page(tmp_path)).train
    assert train.ppo == whole.ppo.model_copy(update={"kl": 0.1})
    assert train.grpo == whole.grpo.model_copy(update={"reward": "live"})
    assert train.sft == whole.sft
    assert "train.sft: Input should be a valid dictionary" in faults_of(tmp_path, SMALLEST, "train.sft=3")
    assert "train: Input should be a valid dictionary" in faults_of(tmp_path, SMALLEST, "train=3")


def test_an_empty_section_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    whole = load(page(tmp_path))
    assert load(page(tmp_path, SMALLEST + "train:\neval:\n")) == whole
    assert load(page(tmp_path, SMALLEST + "train: {ppo: , lora: }\n")) == whole
    assert load(page(tmp_path, SMALLEST + "train:\n"), ["train.ppo.kl=0.1"]).train.ppo.kl == 0.1
    assert "environment: " in faults_of(tmp_path, "run: toy\nenvironment:\n")


def test_a_key_that_comes_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    twice = SMALLEST + "train: {ppo: {kl: 0.5}}\nloop: {trials: 2}\ntrain: {sft: {epochs: 3}}\n"
    assert "the key 'train' comes twice" in faults_of(tmp_path, twice)
    assert f"line {twice.count(chr(10))}," in faults_of(tmp_path, twice)
    assert "the key 'kl' comes twice" in faults_of(tmp_path, SMALLEST + "train: {ppo: {kl: 0.5, kl: 0.6}}\n")


def test_a_store_elsewhere_is_named_by_its_url(tmp_path: Path) -> None:
    assert load(page(tmp_path), ["store=postgresql://db/x"]).store_url == "postgresql://db/x"


def test_the_name_of_the_environment_chooses_its_section(tmp_path: Path) -> None:
    assert isinstance(load(page(tmp_path)).environment, Alfworld)
    assert isinstance(load(page(tmp_path), ["environment.name=hotpotqa"]).environment, Hotpotqa)


def test_a_misspelt_key_is_told_what_was_meant(tmp_path: Path) -> None:
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


def test_a_key_that_resembles_nothing_is_shown_what_there_is(tmp_path: Path) -> None:
    message = faults_of(tmp_path, SMALLEST, "serve.xyzzyx=1")
    assert "Known here: adapters, api_key_env, best_of, body_bytes, dtype, hand_over, host, max_batch, port." in message


def test_every_fault_is_in_one_message(tmp_path: Path) -> None:
    message = faults_of(tmp_path, SMALLEST, "actor.temperature=-1", "loop.trials=0", "collect.candidate=2", "run=a/b")
    assert len(message.splitlines()) == 1 + 4
    assert "  actor.temperature: Input should be greater than or equal to 0. Found -1." in message
    assert "  loop.trials: Input should be greater than or equal to 1. Found 0." in message
    assert "  run: String should match pattern" in message


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    assert "  run: Field required." in faults_of(tmp_path, "environment: {name: alfworld}\n")
    assert "  environment: " in faults_of(tmp_path, "run: toy\nenvironment: {}\n")


def test_an_unknown_environment_is_answered_with_those_there_are(tmp_path: Path) -> None:
    assert "No environment 'chess'. Known are alfworld, " in faults_of(
        tmp_path, "run: toy\nenvironment: {name: chess}\n"
    )
    assert "Did you mean `alfworld`?" in faults_of(tmp_path, "run: toy\nenvironment: {name: alfwrld}\n")
    assert "environment: Give it a name: known are alfworld, " in faults_of(tmp_path, "run: toy\nenvironment: {}\n")


def test_a_misspelt_key_of_the_environment_is_told_the_keys_of_this_one_only(tmp_path: Path) -> None:
    message = faults_of(tmp_path, "run: toy\nenvironment: {name: hotpotqa, xyzzyx: 1}\n")
    assert "environment.xyzzyx: " in message
    known = message.partition("Known here: ")[2]
    assert "reward" in known
    assert "grammar" not in known, "that is a key of another environment"


def test_overrides_are_yaml_and_reach_any_depth(tmp_path: Path) -> None:
    experiment = load(
        page(tmp_path),
        ["run=try2", "collect.tokens=1000", "environment.task_types=[pick, two]", "train.checkpoint_steps=2"],
    )
    assert (experiment.run, experiment.collect.tokens) == ("try2", 1000)
    assert experiment.environment == Alfworld(name="alfworld", task_types=("pick", "two"))
    assert experiment.train.checkpoint_steps == 2


def test_the_last_of_two_overrides_counts(tmp_path: Path) -> None:
    assert load(page(tmp_path), ["seed=1", "seed=2"]).seed == 2


def test_a_value_may_hold_an_equals_sign(tmp_path: Path) -> None:
    assert load(page(tmp_path), ["store=sqlite:///x?a=b"]).store == "sqlite:///x?a=b"


@pytest.mark.parametrize("word", ["split", "=train", "--fast"])
def test_a_word_that_is_no_override_is_told_the_form(tmp_path: Path, word: str) -> None:
    assert f"{word!r} is not an override: write key=value" in faults_of(tmp_path, SMALLEST, word)


def test_an_override_below_a_value_is_refused(tmp_path: Path) -> None:
    assert "'run' is a value, not a section" in faults_of(tmp_path, SMALLEST, "run.name=x")


def test_a_page_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"No experiment page at '.*nowhere.yaml': name a YAML file such as"):
        load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("text", ["run: [", "\x00", "a: b: c"])
def test_a_page_that_is_not_yaml_is_one_sentence(tmp_path: Path, text: str) -> None:
    assert "is not a YAML file: " in (message := faults_of(tmp_path, text))
    assert "\n" not in message


@pytest.mark.parametrize(("text", "found"), [("", "NoneType"), ("- a\n- b\n", "list"), ("hello", "str")])
def test_a_page_that_is_no_mapping_says_what_it_is(tmp_path: Path, text: str, found: str) -> None:
    assert f"expected keys and values, found {found}." in faults_of(tmp_path, text)


def test_a_folder_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a YAML file"):
        load(tmp_path)


def test_an_experiment_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(page(tmp_path)).seed = 5  # type: ignore[misc]


def test_every_knob_has_a_sentence() -> None:
    import ast
    import inspect

    from retroformer import config, train_sections

    silent, written = (
        [],
        [node for module in (config, train_sections) for node in ast.parse(inspect.getsource(module)).body],
    )
    for section in (node for node in written if isinstance(node, ast.ClassDef)):
        for knob, after in zip(section.body, [*section.body[1:], None], strict=True):
            sentence = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(knob, ast.AnnAssign) and isinstance(knob.target, ast.Name) and not sentence:
                silent.append(f"{section.name}.{knob.target.id}")
    sections = {*Experiment.model_fields, "name", "lora", "endpoint"}
    assert [name for name in silent if name.partition(".")[2] not in sections] == []


def test_a_server_sees_to_its_own_batches() -> None:
    page = {"learning_rate": 1e-5, "batch_size": 4, "micro_batch_size": 2, "draw_batch_size": 4}
    assert Ppo.model_validate(page).model_dump()["draw_batch_size"] == 4
    with pytest.raises(ValueError, match="A server draws the responses"):
        Ppo.model_validate(page | {"generation": {"base_url": "http://127.0.0.1:1/v1"}})

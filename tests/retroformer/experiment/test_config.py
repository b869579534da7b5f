"""Test that the typed config is validated as a whole: one message lists every fault and suggests the right key."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from retroformer.agents.retrieval import EXPLORATION
from retroformer.environments.alfworld.section import Alfworld
from retroformer.environments.hotpotqa.section import Hotpotqa
from retroformer.environments.webshop.section import GOALS_PER_PRODUCT
from retroformer.errors import ConfigError, MissingInput
from retroformer.experiment.config import Experiment
from retroformer.experiment.file import load
from retroformer.experiment.renamed import REMOVED, RENAMED
from retroformer.experiment.sections.loop import Loop
from retroformer.experiment.sections.train import Ppo
from serve.api.bounds import BODY_BYTES
from tests.support.keys import is_set, keys, keys_by_section
from tests.support.runs import ROOT
from train.stage_kinds import STAGES

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
        tmp_path, SMALLEST, "reflector.tokens=true", "reflector.endpoint.extra_body={top_p: 0.9, top_k: 5}"
    )
    assert "leave top_k, top_p out of endpoint.extra_body" in fault


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
    keys = "adapters, api_key_env, best_of, dtype, hand_over, host, max_batch, port, quantization"
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
        "run: toy\nenvironment: {name: alfworld}\n"
        "train: {warm: &quick {learning_rate: 0.5, batch_size: 4}, sft: *quick}\n"
    )
    train = load(path, ["train.sft.batch_size=2"]).train
    assert (train.warm.batch_size, train.sft.batch_size) == (4, 2)


def test_the_last_of_two_overrides_counts(tmp_path: Path) -> None:
    assert load(config_file(tmp_path), ["seed=1", "seed=2"]).seed == 2


def test_a_value_may_hold_an_equals_sign(tmp_path: Path) -> None:
    assert load(config_file(tmp_path), ["store=sqlite:///x?a=b"]).store == "sqlite:///x?a=b"


@pytest.mark.parametrize("word", ["split", "=train", "--fast"])
def test_the_error_for_a_malformed_override_shows_the_form(tmp_path: Path, word: str) -> None:
    assert f"{word!r} is not an override: write key=value" in faults_of(tmp_path, SMALLEST, word)


def test_an_override_below_a_value_is_refused(tmp_path: Path) -> None:
    assert "'run' is a value, not a section" in faults_of(tmp_path, SMALLEST, "run.name=x")


def test_a_missing_config_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"No experiment config at '.*nowhere.yaml': name a YAML file such as"):
        load(tmp_path / "nowhere.yaml")


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

    from retroformer.experiment import config

    sections = Path(config.__file__).with_name("sections")
    silent, written = (
        [],
        [node for path in (Path(config.__file__), *sections.glob("*.py")) for node in ast.parse(path.read_text()).body],
    )
    for section in (node for node in written if isinstance(node, ast.ClassDef)):
        for knob, after in zip(section.body, [*section.body[1:], None], strict=True):
            sentence = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(knob, ast.AnnAssign) and isinstance(knob.target, ast.Name) and not sentence:
                silent.append(f"{section.name}.{knob.target.id}")
    nested = {*Experiment.model_fields, "name", "lora", "endpoint"}
    assert [name for name in silent if name.partition(".")[2] not in nested] == []


def test_a_server_sets_its_own_batch_size() -> None:
    section = {"learning_rate": 1e-5, "batch_size": 4, "micro_batch_tokens": 200, "draw_batch_size": 4}
    assert Ppo.model_validate(section).model_dump()["draw_batch_size"] == 4
    with pytest.raises(ValueError, match="A server draws the responses"):
        Ppo.model_validate(section | {"generation": {"base_url": "http://127.0.0.1:1/v1"}})


@pytest.mark.parametrize("as_override", [False, True], ids=["in the file", "as an override"])
def test_an_old_key_sets_the_new_one_and_a_warning_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, as_override: bool
) -> None:
    text, words = SMALLEST + "eval: {tasks: 4, retrieval: {days: 7}}\n", ["eval.retrieval.days=7", "eval.tasks=4"]
    experiment = load(config_file(tmp_path), words) if as_override else load(config_file(tmp_path, text))
    assert (experiment.eval.retrieval_days, experiment.eval.tasks) == (7, 4)
    (message,) = caplog.messages
    assert message.startswith("eval.retrieval.days is called eval.retrieval_days now: rename it")


def test_the_last_of_an_old_and_a_new_key_on_the_command_line_counts(tmp_path: Path) -> None:
    old, new = "eval.retrieval.days=7", "eval.retrieval_days=3"
    assert load(config_file(tmp_path), [old, new]).eval.retrieval_days == 3
    assert load(config_file(tmp_path), [new, old]).eval.retrieval_days == 7
    assert load(config_file(tmp_path, SMALLEST + "eval: {retrieval: {days: 7}}\n"), [new]).eval.retrieval_days == 3
    assert load(config_file(tmp_path, SMALLEST + "eval: {retrieval_days: 3}\n"), [old]).eval.retrieval_days == 7


def test_a_file_with_an_old_key_and_its_new_name_is_refused(tmp_path: Path) -> None:
    both = SMALLEST + "eval: {retrieval: {days: 7}, retrieval_days: 3}\n"
    assert faults_of(tmp_path, both) == (
        "eval.retrieval.days is called eval.retrieval_days now, and this config has both: delete eval.retrieval.days."
    )


def test_a_wrong_value_of_an_old_key_is_refused_under_the_new_name(tmp_path: Path) -> None:
    assert "  eval.retrieval_days: Input should be greater than or equal to 1. Found 0." in faults_of(
        tmp_path, SMALLEST, "eval.retrieval.days=0"
    )


REMOVED_WITH_A_VALUE = [(key, removed.value) for key, removed in REMOVED.items() if removed.value is not None]


@pytest.mark.parametrize(("key", "value"), REMOVED_WITH_A_VALUE)
def test_a_removed_key_with_the_value_of_its_constant_is_only_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, value: float
) -> None:
    name = REMOVED[key].environment or "alfworld"
    plain = load(config_file(tmp_path), [f"environment={{name: {name}}}"])
    assert load(config_file(tmp_path), [f"environment={{name: {name}}}", f"{key}={value}"]) == plain
    assert caplog.messages == [f"{key} can no longer be set and is always {value}: delete it."]


@pytest.mark.parametrize(("key", "value"), REMOVED_WITH_A_VALUE)
@pytest.mark.parametrize("other", ["another", "null"])
def test_a_removed_key_with_another_value_is_refused_and_says_what_to_do(
    tmp_path: Path, key: str, value: float, other: str
) -> None:
    name = REMOVED[key].environment or "alfworld"
    for wrong in (other, str(value + 1)):
        message = faults_of(tmp_path, SMALLEST, f"environment={{name: {name}}}", f"{key}={wrong}")
        assert message.startswith(f"{key} can no longer be set and is always {value}, but this config has ")
        assert message.endswith(f": delete the key; {REMOVED[key].instead}.")


def test_a_removed_key_that_changed_no_result_may_have_any_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = SMALLEST + "loop: {trials: 2, environment_processes: 7}\n"
    assert load(config_file(tmp_path, text)) == load(config_file(tmp_path), ["loop.trials=2"])
    assert caplog.messages == [
        "loop.environment_processes has no effect any more: delete it; their number follows from the CPU cores and "
        "loop.concurrency."
    ]


def test_an_override_can_repair_a_removed_key_of_the_file(tmp_path: Path) -> None:
    text = SMALLEST + "collect: {skip: 5}\n"
    assert "collect.skip can no longer be set" in faults_of(tmp_path, text)
    assert load(config_file(tmp_path, text), ["collect.skip=0"]) == load(config_file(tmp_path))


def test_a_number_that_yaml_reads_as_text_equals_its_constant(tmp_path: Path) -> None:
    assert load(config_file(tmp_path), ["train.ppo.value_weight=1e-1"]) == load(config_file(tmp_path))


def test_a_removed_key_of_one_environment_is_unknown_to_the_others(tmp_path: Path) -> None:
    assert "environment.per_product: Extra inputs" in faults_of(tmp_path, SMALLEST, "environment.per_product=5")


def test_the_config_that_an_earlier_version_wrote_beside_an_adapter_can_be_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    webshop = load(config_file(tmp_path), ["environment={name: webshop}"])
    written = webshop.model_dump(mode="json")
    del written["eval"]["retrieval_days"]
    written["eval"]["retrieval"] = {"exploration": 0.3, "days": None}
    written["environment"]["per_product"], written["loop"]["environment_processes"] = 5, 2
    written["collect"]["skip"], written["serve"]["body_bytes"] = 0, 4_000_000
    written["train"]["actor"]["actions"], written["train"]["ppo"]["value_weight"] = 20, 0.1
    assert load(config_file(tmp_path, yaml.safe_dump(written))).model_dump(mode="json") == webshop.model_dump(
        mode="json"
    )
    assert len(caplog.messages) == len(RENAMED) + len(REMOVED)


def test_old_keys_are_unknown_to_the_config_and_new_ones_are_known() -> None:
    new = keys().keys()
    assert not new & {*RENAMED, *REMOVED}
    assert set(RENAMED.values()) <= new


def test_the_table_of_removed_keys_has_the_values_of_the_constants() -> None:
    constants = {
        "environment.per_product": GOALS_PER_PRODUCT,
        "eval.retrieval.exploration": EXPLORATION,
        "serve.body_bytes": BODY_BYTES,
        "train.actor.actions": STAGES["actor"].constants["actions"],
        "train.ppo.value_weight": STAGES["ppo"].constants["value_weight"],
    }
    assert constants == {key: REMOVED[key].value for key in constants}


@pytest.mark.parametrize(("cores", "concurrency", "processes"), [(1, 16, 2), (4, 16, 4), (64, 16, 8), (64, 1, 1)])
def test_the_number_of_environment_processes_follows_from_cores_and_concurrency(
    monkeypatch: pytest.MonkeyPatch, cores: int, concurrency: int, processes: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert Loop(concurrency=concurrency).environment_processes == processes


def test_every_key_is_varied_by_a_shipped_config_or_shown_in_the_documentation() -> None:
    shown = (ROOT / "docs/configuration.md").read_text()
    shipped = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "configs").rglob("*.yaml"))]
    assert shipped
    unused = {
        f"{section}.{name}": sorted(paths)
        for (section, name), paths in keys_by_section().items()
        if not any(f"`{path}`" in shown for path in paths)
        and not any(is_set(config, path.split(".")) for config in shipped for path in paths)
    }
    assert unused == {}


def test_the_config_has_no_more_keys_than_it_needs() -> None:
    """Raise the number only for a key that an experiment varies; see `test_every_key_is_varied...`."""
    assert len(keys_by_section()) <= 172

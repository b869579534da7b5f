"""Tests of configs with domains: each domain is a complete config of its own, and all share one reflector."""

from pathlib import Path

import pytest
import yaml

from retroformer.config.experiment import Experiment
from retroformer.config.file import load, load_configs, load_domains
from retroformer.errors import ConfigError

TWO = """
run: two
loop: {trials: 2, actions: 9}
train: {lora: {rank: 2}}
eval: {tasks: 7, arms: {alone: {kind: none}}}
domains:
  household:
    environment: {name: alfworld, source: generated}
    loop: {actions: 5}
    reflector: {view: compact}
    eval: {split: held_out, arms: {rule: {kind: rule}}}
  questions:
    environment: {name: hotpotqa}
    collect: {tasks: 3}
"""


def write(folder: Path, text: str = TWO) -> Path:
    path = folder / "two.yaml"
    path.write_text(text)
    return path


def domains_of(folder: Path, *overrides: str) -> tuple[Experiment, Experiment]:
    household, questions = load_domains(write(folder), overrides)
    return household, questions


def fault(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_domains(write(folder, text), overrides)
    return str(refused.value)


def test_a_domain_has_its_own_entries_in_place_of_the_shared_ones(tmp_path: Path) -> None:
    household, questions = domains_of(tmp_path)
    assert (household.environment.name, questions.environment.name) == ("alfworld", "hotpotqa")
    assert [(one.loop.trials, one.loop.actions) for one in (household, questions)] == [(2, 5), (2, 9)]
    assert [one.reflector.view for one in (household, questions)] == ["compact", "full"]
    assert [one.collect.tasks for one in (household, questions)] == [None, 3]
    assert [list(one.eval.arms) for one in (household, questions)] == [["alone", "rule"], ["alone"]]
    assert household.train == questions.train
    assert household.train.lora.rank == 2


def test_domains_share_files_and_have_names_and_reports_of_their_own(tmp_path: Path) -> None:
    household, questions = domains_of(tmp_path)
    assert household.stage_folder("sft") == questions.stage_folder("sft") == Path("runs/two/sft")
    assert household.store_url == questions.store_url == "sqlite:///runs/two/experience.db"
    assert [one.name for one in (household, questions)] == ["two/household", "two/questions"]
    assert [one.report_folder for one in (household, questions)] == [
        Path("runs/two/eval/household"),
        Path("runs/two/eval/questions"),
    ]


def test_every_domain_leads_to_the_same_domains(tmp_path: Path) -> None:
    both = domains_of(tmp_path)
    assert both[0].each_domain == both[1].each_domain == both


def test_an_override_holds_for_every_domain_or_for_the_one_that_it_names_and_the_last_counts(tmp_path: Path) -> None:
    one, every = "domains.questions.collect.tasks=4", "collect.tasks=6"
    assert [domain.collect.tasks for domain in domains_of(tmp_path, every)] == [6, 6]
    assert [domain.collect.tasks for domain in domains_of(tmp_path, one)] == [None, 4]
    assert [domain.collect.tasks for domain in domains_of(tmp_path, every, one)] == [6, 4]
    assert [domain.collect.tasks for domain in domains_of(tmp_path, one, every)] == [6, 6]


def test_one_domain_can_be_chosen_and_its_server_reads_the_same_one(tmp_path: Path) -> None:
    both = domains_of(tmp_path)
    assert load(write(tmp_path), ["domain=questions"]) == both[1]
    configs = load_configs(write(tmp_path), ["seed=3"])
    assert [load(config.path, config.overrides) for config in configs] == [config.experiment for config in configs]


def test_a_command_for_one_domain_asks_which(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="works on one: add domain=household or domain=questions to the command"):
        load(write(tmp_path))


def test_the_resolved_config_is_a_file_that_means_the_same(tmp_path: Path) -> None:
    both = domains_of(tmp_path)
    assert both[0].as_file() == both[1].as_file()
    assert load_domains(write(tmp_path, yaml.safe_dump(both[0].as_file()))) == both


def test_a_config_without_domains_is_dumped_as_before(tmp_path: Path) -> None:
    experiment = load(write(tmp_path, "run: one\nenvironment: {name: alfworld}\n"))
    assert list(experiment.as_file()) == [
        *("run", "seed", "round", "store", "environment", "loop", "actor", "evaluator", "reflector", "collect"),
        *("train", "serve", "rounds", "eval", "gate"),
    ]
    assert (experiment.name, experiment.report_folder) == ("one", Path("runs/one/eval"))
    assert experiment.each_domain == (experiment,)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("train: {seed: 1}", "domains.household.train: a domain has only the sections environment, loop, actor, "),
        ("run: x", "domains.household.run: a domain has only the sections "),
        ("colect: {tasks: 1}", "domains.household.colect: a domain has only the sections "),
        ("reflector: {temperature: 0.5}", "domains.questions.reflector.temperature: all domains train and ask one "),
        ("reflector: {endpoint: {model: sft}}", "domains.questions.reflector.endpoint: all domains train and ask one "),
        ("collect: {task: 1}", "two.yaml, domain household, does not describe an experiment:\n  collect.task: Extra "),
        ("collect: {task: 1}", "Did you mean `tasks`?"),
        ("loop: {trials: 0}", "domain household, does not describe an experiment:\n  loop.trials: Input should be "),
    ],
)
def test_a_wrong_entry_of_a_domain_is_refused_with_its_place(tmp_path: Path, own: str, message: str) -> None:
    assert message in fault(tmp_path, TWO.replace("loop: {actions: 5}\n    reflector: {view: compact}", own))


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        ("{a: {environment: {name: alfworld}}, a: {environment: {name: hotpotqa}}}", "the key 'a' comes twice"),
        ("{a/b: {environment: {name: alfworld}}}", "domains.a/b: a domain's name has letters, digits"),
        ("{1: {environment: {name: alfworld}}}", "domains.1: a domain's name has letters"),
        ("{a: 3}", "domains.a: expected the sections of a domain, found 3."),
        ("{a: }", "domains.a: expected the sections of a domain, found None."),
        ("[a, b]", "domains: expected names, each with the sections of a domain, found ['a', 'b']."),
        ("{a: {loop: {trials: 2}}}", "domain a, does not describe an experiment:\n  environment: Field required."),
    ],
)
def test_domains_of_a_wrong_form_are_refused(tmp_path: Path, domains: str, message: str) -> None:
    assert message in fault(tmp_path, f"run: two\ndomains: {domains}\n")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("domains.kitchen.collect.tasks=3", "with one of the domains household, questions."),
        ("domains.household={}", "write domains.NAME.key=value"),
        ("domains={}", "write domains.NAME.key=value"),
        ("domains.household.train.max_length=9", "domains.household.train: a domain has only the sections "),
        ("domains.household.collect.tasks", "'collect.tasks' is not an override"),
        ("domain=kitchen", "domain=kitchen: "),
    ],
)
def test_a_wrong_override_of_a_domain_is_refused(tmp_path: Path, override: str, message: str) -> None:
    assert message in fault(tmp_path, TWO, override)


@pytest.mark.parametrize("override", ["domain=household", "domains.household.collect.tasks=3"])
def test_a_config_without_domains_has_none_to_choose(tmp_path: Path, override: str) -> None:
    assert "no" in fault(tmp_path, "run: one\nenvironment: {name: alfworld}\n", override)

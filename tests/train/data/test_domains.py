"""Tests of training on several domains: one reflector learns from the pooled facts of all of them."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval.play.preflight import refuse_adapters_trained_on
from retroformer.config.conditions import conditions
from retroformer.config.file import load_domains
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import Key, Outcome, Reflection, Task
from retroformer.run.stage_metrics import read_metrics
from retroformer.run.store import Store, open_store
from tests.support.characters import attempt_at
from tests.support.facts import add_trajectory
from tests.train.world import AUTHOR, BAD, GOOD, config_file, prompt
from train.__main__ import main
from train.data import inputs

HOUSEHOLD, QUESTIONS = ("alfworld", 0), ("hotpotqa", None)


def two_domains(folder: Path, base: Path) -> Path:
    """Write a config with a household and a question domain, which trains the tiny model."""
    path = config_file(folder, base)
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    household = {"environment": content.pop("environment"), "collect": {"written": 4}}
    questions = {"environment": {"name": "hotpotqa"}, "actor": {"kind": "react"}}
    arms = {"trained": {"kind": "model", "model": "sft"}}
    content |= {"domains": {"household": household, "questions": questions}, "eval": {"arms": arms}}
    path.write_text(yaml.safe_dump(content))
    return path


def fill(config: Path, household: int = 3, questions: int = 2) -> None:
    """Store a failure of each task, with good advice rated 1 and bad advice rated 0.

    The first domain has written advice, too, and its facts are bound to its conditions; the data of the second are not
    here. The same ids are used in both domains.
    """
    for experiment, tasks in zip(load_domains(config), (household, questions), strict=True):
        store = open_store(experiment)
        if experiment.collect.written:
            store.declare("collect", conditions(experiment))
        for number in range(tasks):
            _fill_one(store, experiment.environment.name, f"task-{number}", written=experiment.collect.written > 0)
        store.close()


def _fill_one(store: Store, environment: str, name: str, *, written: bool) -> None:
    task = Task(id=name, environment=environment, split="train")
    add_trajectory(store, Key(arm="collect", task_id=name), attempt_at(task))
    for candidate, text in enumerate((GOOD, BAD)):
        key = Key(arm="collect", task_id=name, trial=1, candidate=candidate)
        advice = Reflection(text=text, prompt=prompt(f"{environment} {name}"), author=AUTHOR)
        store.add_reflection(key, 0, advice)
        add_trajectory(store, key, attempt_at(task, (float(text == GOOD),)))
        if written:
            store.add_reflection(key.model_copy(update={"arm": "written"}), 0, advice)


def test_the_rows_of_all_domains_are_pooled(tiny_base: Path, workplace: Path) -> None:
    config = two_domains(workplace, tiny_base)
    fill(config)
    for experiment in load_domains(config):
        assert len(inputs.written_advice(experiment)) == 3 * 2
        assert [advice.text for advice in inputs.positive_reflections(experiment)] == [GOOD] * (3 + 2)
        assert len(inputs.rated(experiment)) == 2 * (3 + 2)
        assert len(inputs.prompts(experiment)) == 3 + 2
        pairs = inputs.pairs(experiment)
        assert [(pair.chosen, pair.rejected) for pair in pairs] == [(GOOD, BAD)] * (3 + 2)
        assert [pair.prompt[0].content.split()[0] for pair in pairs] == ["alfworld"] * 3 + ["hotpotqa"] * 2
        rated = inputs.rated_tasks(experiment, inputs.rounds_read(experiment))
        assert [(one.environment, one.seed, len(one.tasks)) for one in rated] == [
            (*HOUSEHOLD, 3),
            (*QUESTIONS, 2),
        ]
    experiment = load_domains(config)[0]
    with closing(open_store(experiment)) as store:
        store.declare("collect", conditions(experiment))
        solved = Task(id="solved at once", environment="alfworld", split="train")
        add_trajectory(store, Key(arm="collect", task_id=solved.id), attempt_at(solved, (1.0,), Outcome.SUCCESS))
    assert "solved at once" in inputs.rated_tasks(experiment, inputs.rounds_read(experiment))[0].tasks


def test_tasks_are_recorded_under_the_seed_with_which_they_were_played(tiny_base: Path, workplace: Path) -> None:
    config = two_domains(workplace, tiny_base)
    fill(config)
    played, trained = load_domains(config)[0], load_domains(config, ["seed=5"])[0]
    assert played.environment.seeded_tasks
    with closing(open_store(played)) as store:
        store.declare("collect", conditions(played))
    read = inputs.rated_tasks(trained, inputs.rounds_read(trained))
    assert {(tasks.environment, tasks.seed) for tasks in read if tasks.tasks} == {HOUSEHOLD, QUESTIONS}


def test_a_domain_without_facts_adds_none_and_all_without_facts_are_an_error(tiny_base: Path, workplace: Path) -> None:
    config = two_domains(workplace, tiny_base)
    fill(config, questions=0)
    experiment = load_domains(config)[0]
    assert len(inputs.positive_reflections(experiment)) == 3
    other = load_domains(config, ["run=other", f"store={experiment.store_url}"])[0]
    with pytest.raises(MissingInput, match="No rated reflections in "):
        inputs.positive_reflections(other)


@pytest.mark.slow
def test_one_adapter_is_trained_for_all_domains_and_records_the_tasks_of_each(tiny_base: Path, workplace: Path) -> None:
    config = two_domains(workplace, tiny_base)
    fill(config)
    for stage in ("warm", "sft", "reward", "ppo"):
        main([stage, str(config)])
    recorded = {stage: read_metrics(Path(f"runs/tiny/{stage}")) for stage in ("warm", "sft", "reward", "ppo")}
    assert (recorded["sft"].measure("samples_with_duplicates"), recorded["ppo"].prompts) == (5, 5)
    assert (recorded["reward"].pairs or 0) + recorded["reward"].held_out_pairs == 5
    for stage in ("sft", "reward", "ppo"):
        assert [(one.environment, one.seed, one.tasks) for one in recorded[stage].training_domains or ()] == [
            (*HOUSEHOLD, ("task-0", "task-1", "task-2")),
            (*QUESTIONS, ("task-0", "task-1")),
        ]
    card = Path("runs/tiny/sft/README.md").read_text()
    assert "attempts at tasks of `alfworld`, split `train` and `hotpotqa`, split `validation_100`, seed 0" in card
    assert "Its data are of 2 environments (`alfworld`, `hotpotqa`)" in card
    assert "| training_domains.alfworld | 3 |\n| training_domains.hotpotqa | 2 |" in card
    assert load_domains(Path("runs/tiny/sft/config.yaml")) == load_domains(config)


def test_the_training_tasks_of_every_domain_are_refused_in_every_domain(tiny_base: Path, workplace: Path) -> None:
    config = two_domains(workplace, tiny_base)
    fill(config)
    main(["sft", str(config)])
    household, questions = load_domains(config)
    tasks = [Task(id=f"task-{number}", environment="any", split="held_out") for number in (2, 9)]
    with pytest.raises(ConfigError, match="1 of 2 evaluation tasks were used to train 'sft'"):
        refuse_adapters_trained_on(household, tasks)
    refuse_adapters_trained_on(questions, tasks)  # There, the third task was not trained on.
    with pytest.raises(ConfigError, match="such as 'task-1'"):
        refuse_adapters_trained_on(questions, [tasks[0].model_copy(update={"id": "task-1"})])


def test_stages_that_cannot_pool_domains_say_so(tiny_base: Path, workplace: Path) -> None:
    config = str(two_domains(workplace, tiny_base))
    fill(Path(config))
    with pytest.raises(ConfigError, match="`train sft` trains one reflector on the facts of all domains: leave domain"):
        main(["sft", config, "domain=questions"])
    for stage in ("actor", "sac"):
        with pytest.raises(ConfigError, match=f"`train {stage}` trains an actor, which plays one environment"):
            main([stage, config, "domain=household"])
    main(["sft", config])
    with pytest.raises(ConfigError, match=r"train\.grpo\.reward=live retries the failures of one environment"):
        main(["grpo", config, "train.grpo.reward=live"])


def test_a_domain_collected_under_other_conditions_is_refused(tiny_base: Path, workplace: Path) -> None:
    config = two_domains(workplace, tiny_base)
    fill(config)
    assert len(inputs.pairs(load_domains(config, ["domains.questions.loop.actions=4"])[0])) == 5
    with pytest.raises(ConfigError, match=r"facts of the run 'tiny/household' were made with loop\.actions=30"):
        inputs.pairs(load_domains(config, ["domains.household.loop.actions=4"])[1])

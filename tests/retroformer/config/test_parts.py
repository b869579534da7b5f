"""Test that the parts that a config names are built, and that impossible ones are refused with advice."""

import asyncio
from pathlib import Path

import pytest

from retroformer.agents.actors import ReactActor
from retroformer.config.experiment import Experiment
from retroformer.config.file import load, load_config
from retroformer.config.parts import Connections, check_prompts, chosen_tasks, make_actor, parts
from retroformer.config.sections.base import Endpoint as EndpointSection
from retroformer.environments.alfworld.actors import HouseholdActor, RuleActor
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.rollout import finish_all
from tests.support.endpoint import Endpoint
from tests.support.runs import open_config, write_config

NOWHERE = "http://127.0.0.1:1/v1"


def experiment(folder: Path, *overrides: str) -> Experiment:
    return load(write_config(folder, NOWHERE), overrides)


def test_a_loaded_config_keeps_its_path_and_overrides(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, NOWHERE), ["run=try2"])
    assert (config.experiment.run, config.overrides) == ("try2", ("run=try2",))


@pytest.mark.parametrize(("kind", "actor"), [("rule", RuleActor), ("react", ReactActor), ("household", HouseholdActor)])
def test_the_config_chooses_the_actor(tmp_path: Path, kind: str, actor: type) -> None:
    assert isinstance(
        make_actor(experiment(tmp_path, f"actor.kind={kind}"), Connections(NOWHERE, frozenset({"base"}))), actor
    )


@pytest.mark.parametrize("kind", ["rule", "household"])
def test_an_actor_for_households_does_not_play_anything_else(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "questions.yaml"
    path.write_text(f"run: toy\nenvironment: {{name: hotpotqa}}\nactor: {{kind: {kind}}}\n")
    with pytest.raises(ConfigError, match=rf"The {kind} actor does not play hotpotqa: set actor.kind to react"):
        make_actor(load(path), Connections(NOWHERE))


def test_an_endpoint_without_an_address_is_the_experiments_own_server() -> None:
    connections = Connections("http://127.0.0.1:7/v1", frozenset({"base"}))
    assert connections.model(EndpointSection()).base_url == "http://127.0.0.1:7/v1"
    remote = connections.model(EndpointSection(base_url=NOWHERE, model="big").named("bigger"))
    assert (remote.base_url, remote.model) == (NOWHERE, "bigger")


def test_the_error_for_an_unserved_adapter_names_its_training_command() -> None:
    connections = Connections("http://127.0.0.1:7/v1", frozenset({"base", "sft", "sft@0123456789ab"}))
    assert connections.model(EndpointSection(model="sft@0123456789ab")).model == "sft@0123456789ab"
    for absent in ("ppo", "ppo@0123456789ab"):
        with pytest.raises(MissingInput, match=r"only base, sft, .*`retroformer train ppo EXPERIMENT\.yaml`"):
            connections.model(EndpointSection(model=absent))
    for absent, advice in (
        ("reflector", r"run `retroformer train STAGE EXPERIMENT\.yaml` first"),
        ("base+best8", r"run `retroformer train reward EXPERIMENT\.yaml` first"),
        ("ppo-2+best8", r"train ppo EXPERIMENT\.yaml round=2` and `retroformer train reward EXPERIMENT\.yaml` first"),
        ("typo+best8", r"sft@0123456789ab: name one of these\."),
    ):
        with pytest.raises(MissingInput, match=advice):
            connections.model(EndpointSection(model=absent))


def test_no_server_is_started_if_every_endpoint_has_an_address(tmp_path: Path) -> None:
    async def built() -> tuple[str | None, str]:
        with Endpoint() as server:
            async with parts(open_config(write_config(tmp_path, server.url)), asks_reflector=True) as made:
                answer = await made.connections.model(made.experiment.reflector.endpoint).complete(
                    "Hello?", temperature=0, max_new_tokens=5
                )
                return made.connections.base_url, answer.text

    assert asyncio.run(built()) == (None, "Look in countertop 1 first.")


def test_tasks_are_chosen_in_order_one_split_after_the_other(tmp_path: Path) -> None:
    config = experiment(tmp_path)
    train, held_out = chosen_tasks(config, None), chosen_tasks(config, None, ("held_out",))
    assert chosen_tasks(config, 3) == train[:3]
    assert chosen_tasks(config, None, ("held_out", "train")) == (*held_out, *train)
    assert {task.split for task in held_out} == {"held_out"}
    with pytest.raises(ConfigError, match=r"tasks of split 'train' are in another of the splits train, train, too"):
        chosen_tasks(config, None, ("train", "train"))


def test_prompts_in_the_wrong_grammar_are_refused_before_the_first_rollout(tmp_path: Path) -> None:
    check_prompts(experiment(tmp_path, "actor.kind=react"))
    with pytest.raises(ConfigError):
        check_prompts(experiment(tmp_path, "actor.kind=react", "environment.grammar=put"))


def test_work_in_flight_is_finished_before_an_error_stops_a_stage() -> None:
    finished = []

    async def fails() -> None:
        raise MissingInput("There is none.")

    async def works() -> None:
        await asyncio.sleep(0.01)
        finished.append(True)

    async def both() -> None:
        await finish_all([fails(), works()])

    with pytest.raises(MissingInput):
        asyncio.run(both())
    assert finished == [True]

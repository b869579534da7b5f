"""What a page names is built, and what cannot be is refused with what to do instead."""

import asyncio
from pathlib import Path

import pytest

from retroformer.actors.household import HouseholdActor
from retroformer.actors.react import ReactActor
from retroformer.actors.rule import RuleActor
from retroformer.assembly import (
    Connections,
    check_prompts,
    chosen_tasks,
    gather_all,
    make_actor,
    parts,
    read_page,
)
from retroformer.config import Endpoint as EndpointSection
from retroformer.config import Experiment
from retroformer.config_file import load
from retroformer.errors import ConfigError, MissingInput
from tests.support.endpoint import Endpoint
from tests.support.runs import open_page, write_page

NOWHERE = "http://127.0.0.1:1/v1"


def experiment(folder: Path, *overrides: str) -> Experiment:
    return load(write_page(folder, NOWHERE), overrides)


@pytest.mark.parametrize("words", [(), ("run=try2",), ("--fast",)])
def test_a_command_without_a_page_is_told_its_usage(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"Name an experiment page. Usage: how it is used"):
        read_page(words, "how it is used")


def test_a_page_keeps_the_words_that_made_it(tmp_path: Path) -> None:
    page = read_page([str(write_page(tmp_path, NOWHERE)), "run=try2"], "")
    assert (page.experiment.run, page.overrides) == ("try2", ("run=try2",))


@pytest.mark.parametrize(("kind", "actor"), [("rule", RuleActor), ("react", ReactActor), ("household", HouseholdActor)])
def test_the_page_chooses_the_actor(tmp_path: Path, kind: str, actor: type) -> None:
    assert isinstance(
        make_actor(experiment(tmp_path, f"actor.kind={kind}"), Connections(NOWHERE, frozenset({"base"}))), actor
    )


@pytest.mark.parametrize("kind", ["rule", "household"])
def test_an_actor_for_households_does_not_play_anything_else(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "questions.yaml"
    path.write_text(f"run: toy\nenvironment: {{name: hotpotqa}}\nactor: {{kind: {kind}}}\n")
    with pytest.raises(ConfigError, match=rf"The {kind} actor plays ALFWorld only: set actor.kind=react for hotpotqa"):
        make_actor(load(path), Connections(NOWHERE))


def test_an_endpoint_without_an_address_is_the_experiments_own_server() -> None:
    connections = Connections("http://127.0.0.1:7/v1", frozenset({"base"}))
    assert connections.model(EndpointSection()).base_url == "http://127.0.0.1:7/v1"
    remote = connections.model(EndpointSection(base_url=NOWHERE, model="big"), "bigger")
    assert (remote.base_url, remote.model) == (NOWHERE, "bigger")


def test_an_adapter_that_is_not_served_is_answered_with_the_command_that_makes_it() -> None:
    connections = Connections("http://127.0.0.1:7/v1", frozenset({"base", "sft", "sft@0123456789ab"}))
    assert connections.model(EndpointSection(model="sft@0123456789ab")).model == "sft@0123456789ab"
    for absent in ("ppo", "ppo@0123456789ab"):
        with pytest.raises(MissingInput, match=r"only base, sft, .*`python -m train ppo EXPERIMENT\.yaml`"):
            connections.model(EndpointSection(), absent)


def test_no_server_is_started_where_every_endpoint_has_an_address(tmp_path: Path) -> None:
    async def built() -> tuple[str | None, str]:
        with Endpoint() as server:
            async with parts(open_page(write_page(tmp_path, server.url)), asks_reflector=True) as made:
                answer = await made.connections.model(made.experiment.reflector.endpoint).complete(
                    "Hello?", temperature=0, max_new_tokens=5
                )
                return made.connections.base_url, answer.text

    assert asyncio.run(built()) == (None, "Look in countertop 1 first.")


def test_tasks_are_chosen_in_order_one_split_after_the_other(tmp_path: Path) -> None:
    page = experiment(tmp_path)
    train, held_out = chosen_tasks(page, None), chosen_tasks(page, None, ("held_out",))
    assert chosen_tasks(page, 3) == train[:3]
    assert chosen_tasks(page, None, ("held_out", "train")) == (*held_out, *train)
    assert {task.split for task in held_out} == {"held_out"}
    with pytest.raises(ConfigError, match=r"tasks of split 'train' are in another of the splits train, train, too"):
        chosen_tasks(page, None, ("train", "train"))


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
        await gather_all([asyncio.create_task(fails()), asyncio.create_task(works())])

    with pytest.raises(MissingInput):
        asyncio.run(both())
    assert finished == [True]

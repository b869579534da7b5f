"""Tests of actions of several forms, with the real servers of tests/support/openenv_server.py."""

import json

import pytest

from retroformer.environments.registry import extras, section_of, taskset
from retroformer.errors import ConfigError, EnvironmentFailure
from retroformer.method.protocols import Environment
from retroformer.method.records import Task

pytest.importorskip("openenv.core.env_server", reason="needs openenv-core")
pytest.importorskip("retroformer.integrations.openenv", reason="the integration is deleted")

TASK = Task(id="train/1", environment="openenv", split="train")


def begun(url: str, **keys: object) -> Environment:
    """Return an environment that has shown its first observation."""
    environment = taskset(section_of({"name": "openenv", "url": url, "observation": "hint", **keys})).environment()
    environment.reset(TASK)
    return environment


@pytest.mark.parametrize("text", ["hello", '{"text": "hello"}', "[1, 2]", '{"row": 1}', "7", "null", "[" * 900])
def test_any_text_reaches_a_field_of_text_as_it_is(text: str, url: str) -> None:
    for keys in ({}, {"action": "text"}):
        assert json.loads(begun(f"{url}/saying", **keys).step(text).observation) == {"text": text}


def test_a_field_without_text_gets_json_or_is_part_of_a_whole_action(url: str) -> None:
    pricing = begun(f"{url}/pricing")
    for text in ("[1, 2.5]", '{"prices": [1, 2.5]}'):
        assert json.loads(pricing.step(text).observation) == {"prices": [1.0, 2.5]}
    assert pricing.step("many").observation.startswith("The action was refused: Invalid message prices: ")


def test_an_action_of_several_fields_is_a_json_object(url: str) -> None:
    placing = begun(f"{url}/placing")
    whole = {"row": 2, "marks": [1], "note": '{"row": 3}'}
    assert json.loads(placing.step(json.dumps(whole)).observation) == whole
    refused = placing.step("row 2, please")
    assert refused.observation == (
        "The action was refused: an action is a JSON object with the fields row (integer), marks (array) and the "
        "optional field note."
    )
    assert not refused.over
    assert placing.step("[2, 1]").observation == refused.observation
    assert placing.step('{"row": 9, "marks": []}').observation.startswith(
        "The action was refused: Invalid message row: Input should be less than or equal to 3"
    )
    assert json.loads(placing.step(json.dumps(whole)).observation) == whole


@pytest.mark.parametrize("levels", [60, 500, 980, 100_000])
def test_json_that_is_nested_too_deeply_is_refused_without_the_server(levels: int, url: str) -> None:
    placing = begun(f"{url}/placing")
    nested = "[" * levels + "]" * levels
    refused = placing.step(f'{{"row": 1, "marks": {nested}}}')
    assert refused.observation == "The action was refused: it is nested deeper than 50 levels."
    assert not refused.over
    assert placing.step('{"row": 1, "marks": []}').reward == 0.0


def test_half_a_character_is_refused_without_the_server(url: str) -> None:
    said = "The action was refused: it holds half of a surrogate pair, which is not a character."
    assert begun(f"{url}/saying").step("\ud800").observation == said
    assert begun(f"{url}/placing").step(r'{"row": 1, "marks": [], "note": "\ud800"}').observation == said


def test_a_refusal_that_closes_the_session_ends_the_attempt_with_the_return_so_far(url: str) -> None:
    saying = begun(f"{url}/saying")
    assert not saying.step("hello").over
    last = saying.step("nothing")
    assert last.observation == (
        "The action was refused: the server cannot say why, and closed the session.\n"
        "The episode is over; its return is 0.25 of 1."
    )
    assert (last.reward, last.terminated, last.success) == (0.25, True, False)
    saying.reset(TASK)
    assert not saying.step("hello").over


def test_an_observation_that_the_server_builds_wrongly_is_not_the_failure_of_the_agent(url: str) -> None:
    with pytest.raises(EnvironmentFailure, match="reports VALIDATION_ERROR: Invalid message hint: "):
        begun(url).step("98")


def test_an_action_field_that_does_not_fit_the_server_is_refused_before_anything_is_played(url: str) -> None:
    with pytest.raises(ConfigError, match=r"no field 'txt', only text, loud: correct environment\.action\."):
        begun(f"{url}/saying", action="txt")
    section = section_of({"name": "openenv", "url": f"{url}/placing", "action": "row"})
    with pytest.raises(ConfigError, match=r"requires marks besides 'row': remove environment\.action"):
        extras(section).require_machine(section)
    assert json.loads(begun(f"{url}/pricing", action="prices").step("[1]").observation) == {"prices": [1.0]}

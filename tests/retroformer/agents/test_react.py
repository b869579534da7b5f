"""A model's text, in the many spellings of models, is parsed into one thought and one action."""

import asyncio
from collections.abc import Iterator

import pytest

from retroformer.agents.actors import ReactActor, parse
from retroformer.config.sections.base import Endpoint as EndpointSection
from retroformer.endpoint.model import LanguageModel
from retroformer.errors import EndpointFailure
from retroformer.method.prompts import PromptPack
from retroformer.method.protocols import Move, Scene
from retroformer.method.records import Memory, Task, Usage
from tests.support.endpoint import Behaviour, Endpoint

PACK = PromptPack(act="Act.", examples=("Action 1: look",), remember="Advice:", reflect="Why?", ask="Advice:")
SCENE = Scene(
    task=Task(id="a", environment="alfworld", split="train"),
    opening="You are in a room.",
    steps=(),
    memory=Memory(reflections=("Look in cabinet 1.",)),
)
PLAIN = ("I need a mug.", "go to shelf 1")


@pytest.mark.parametrize(
    "text",
    [
        " I need a mug.\nAction 1: go to shelf 1",
        "Thought 1: I need a mug.\nAction 1: go to shelf 1\n",
        "Thought: I need a mug.\nAction: go to shelf 1",
        "**Thought 1:** I need a mug.\n**Action 1:** go to shelf 1",
        "**Thought 1**: I need a mug.\n\n**Action 1**: go to shelf 1",
        "thought 1: I need a mug.\naction 1: go to shelf 1",
        "I need a mug.\nAction 1: **go to shelf 1**",
        "I need a mug.\nAction 1: `go to shelf 1`",
        "I need a mug.\nAction 1:\ngo to shelf 1",
        "I need a mug.\nAction 1: > go to shelf 1",
        "I need\n a mug.\nAction 1: go to shelf 1\nObservation 1: You see a mug.\nThought 2: Good.\nAction 2: take mug",
        "I need a mug.\r\nAction 1: go to shelf 1\r\n",
        "I need a mug.\ngo to shelf 1",
        "I need a mug.\ngo to shelf 1\nObservation 1: On the shelf 1, you see a mug 1.",
    ],
)
def test_one_step_is_read_from_many_spellings(text: str) -> None:
    assert parse(text) == PLAIN


@pytest.mark.parametrize(
    ("text", "thought", "action"),
    [
        ("I know it. Finish[Paris]", "I know it.", "Finish[Paris]"),
        ("I should search.\nSearch[Eiffel Tower]\nThought 2: Then ...", "I should search.", "Search[Eiffel Tower]"),
        ("Action 3: Lookup[height]", "", "Lookup[height]"),
        ("The answer is out.\nAction 2: Finish[yes]\n\nQuestion: What else?", "The answer is out.", "Finish[yes]"),
        ("Thought 1: Search first.\nAction 1: search[Paris]", "Search first.", "search[Paris]"),
    ],
)
def test_calls_in_brackets_are_found_with_and_without_labels(text: str, thought: str, action: str) -> None:
    assert parse(text) == (thought, action)


def test_an_action_alone_has_an_empty_thought() -> None:
    assert parse("go to shelf 1") == ("", "go to shelf 1")
    assert parse("Action: go to shelf 1") == ("", "go to shelf 1")


@pytest.mark.parametrize("text", ["", "  \n ", "Thought 1:", "Action 1:", "**"])
def test_an_empty_text_gives_an_empty_action(text: str) -> None:
    assert parse(text)[1] == ""


def test_without_an_action_the_last_line_is_the_action() -> None:
    assert parse("I am lost.\nI do not know what to do.") == ("I am lost.", "I do not know what to do.")


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with Endpoint() as opened:
        yield opened


def act(server: Endpoint, temperature: float = 0.0, scene: Scene = SCENE, pack: PromptPack = PACK) -> Move:
    async def once() -> Move:
        model = LanguageModel(EndpointSection(base_url=server.url, model="big", timeout_seconds=5), server.url)
        try:
            return await ReactActor(model, pack, temperature, max_new_tokens=40).act(scene)
        finally:
            await model.close()

    return asyncio.run(once())


def test_the_actor_asks_its_model_once_for_each_step_and_stops_before_the_observation(server: Endpoint) -> None:
    move = act(server)
    assert (move.thought, move.action) == ("I look further.", "go to countertop 1")
    assert move.usage == Usage(calls=1, prompt_tokens=7, completion_tokens=3)
    (request,) = server.requests
    assert (request["temperature"], request["max_tokens"], request["stop"]) == (0.0, 40, ["\nObservation"])
    assert "Advice:\n- Look in cabinet 1." in request["messages"][-1]["content"]


def test_a_sampled_step_is_drawn_with_its_seed_and_a_greedy_one_needs_none(server: Endpoint) -> None:
    act(server, 0.7, SCENE.model_copy(update={"seed": 71}))
    act(server, 0.0, SCENE.model_copy(update={"seed": 71}))
    sampled, greedy = server.requests
    assert (sampled["temperature"], sampled["seed"]) == (0.7, 71)
    assert "seed" not in greedy


def test_an_unreachable_model_is_an_endpoint_failure(server: Endpoint) -> None:
    server.behaviour = Behaviour.ERROR
    with pytest.raises(EndpointFailure, match="answered 500"):
        act(server)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (" think: It may be on the shelf.", "think: It may be on the shelf."),
        ("\n> go to shelf 1\nOn the shelf 1, you see nothing.\n> look", "go to shelf 1"),
        ("`go to shelf 1`", "go to shelf 1"),
        ("  \n", ""),
    ],
)
def test_in_the_layout_of_commands_the_first_line_is_the_action(text: str, action: str) -> None:
    with Endpoint(reply=lambda body: text) as server:
        move = act(server, pack=PACK.model_copy(update={"layout": "commands"}))
    assert (move.thought, move.action) == ("", action)
    assert server.requests[0]["stop"] == ["\n"]

"""Tests of a model as the reflector: its requests, and the reflection made of its answer."""

import asyncio
from collections.abc import Iterator

import pytest

from retroformer.agents.reflector import ModelReflector
from retroformer.config.sections.base import Endpoint as EndpointSection
from retroformer.endpoint.model import LanguageModel
from retroformer.errors import EndpointFailure
from retroformer.method.records import Author, Memory, Message, Reflection, Sampling, Trajectory, Usage
from tests.support.characters import attempt_at
from tests.support.endpoint import Behaviour, Endpoint


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with Endpoint(reply=lambda body: "  Say Paris.\n") as opened:
        yield opened


def render(failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    return (Message(role="user", content=f"{failure.opening} {' '.join(memory.reflections)}"),)


def reflect(server: Endpoint, section: EndpointSection, adapter_sha256: str | None = None) -> Reflection:
    async def once() -> Reflection:
        model = LanguageModel(section.named("ppo"), section.base_url or server.url)
        reflector = ModelReflector(model, render, 0.9, 64, adapter_sha256=adapter_sha256)
        try:
            return await reflector.reflect(attempt_at(), Memory(reflections=("Think.",)), seed=5)
        finally:
            await model.close()

    return asyncio.run(once())


def test_the_reflection_keeps_its_words_prompt_author_sampling_and_cost(server: Endpoint) -> None:
    reflection = reflect(server, EndpointSection(base_url=server.url))
    assert reflection == Reflection(
        text="Say Paris.",
        prompt=(Message(role="user", content="What is it? Think."),),
        author=Author(endpoint=server.url, model="ppo"),
        sampling=Sampling(temperature=0.9, max_new_tokens=64, seed=5),
        finish_reason="stop",
        usage=Usage(calls=1, prompt_tokens=7, completion_tokens=3),
    )


def test_the_endpoint_receives_exactly_the_recorded_request(server: Endpoint) -> None:
    reflection = reflect(server, EndpointSection(base_url=server.url))
    (request,) = server.requests
    assert request["messages"] == [turn.model_dump() for turn in reflection.prompt]
    assert (request["model"], request["temperature"], request["max_tokens"], request["seed"]) == ("ppo", 0.9, 64, 5)


def test_the_author_on_the_experiments_own_server_is_the_adapter_without_the_port(server: Endpoint) -> None:
    author = reflect(server, EndpointSection(), adapter_sha256="ab" * 32).author
    assert author == Author(endpoint="embedded", model="ppo", adapter_sha256="ab" * 32)


def test_an_unreachable_model_writes_no_reflection(server: Endpoint) -> None:
    server.behaviour = Behaviour.BUSY
    with pytest.raises(EndpointFailure, match="answered 429"):
        reflect(server, EndpointSection(base_url=server.url))

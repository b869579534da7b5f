"""Select the actor that a config names: ReAct, native tool calling, a chooser, or an actor of the environment."""

from collections.abc import Callable, Sequence
from typing import Any

from retroformer.environments.extras import ActorKind, ActorParts
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError
from retroformer.experiment.config import Experiment
from retroformer.protocols import Actor, OfferedActions, Scene

REACT, TOOLS, CHOOSER = "react", "tools", "chooser"


def _react(parts: ActorParts) -> Actor:
    from retroformer.agents.react import ReactActor

    return ReactActor(parts.model(), parts.pack(), parts.settings.temperature, parts.settings.max_new_tokens)


def _tools(parts: ActorParts) -> Actor:
    from retroformer.agents.tool_actor import ToolActor

    endpoint, offered = parts.settings.endpoint, extras(parts.section).tools
    if endpoint.base_url is None or endpoint.api != "chat":
        raise ConfigError(
            "The tools actor needs a chat endpoint with native tool calling, which our own server lacks: set "
            "actor.endpoint.base_url and api=chat, or actor.kind=react."
        )
    tools = None if offered is None else offered(parts.section)
    return ToolActor(parts.model(), parts.pack(), parts.settings.temperature, parts.settings.max_new_tokens, tools)


def _chooser(choices: Callable[[Scene], Sequence[str]]) -> ActorKind:
    def build(parts: ActorParts) -> Actor:
        from retroformer.agents.chooser import Chooser

        return Chooser(parts.model(), choices, parts.settings.temperature, parts.settings.max_new_tokens)

    def offers(_: Any, scene: Scene) -> OfferedActions:
        from retroformer.agents.chooser import offered_among

        return offered_among(choices, scene)

    return ActorKind(build, reads_pack=False, reads_last_attempt=False, offers=offers)


def actor_kind(experiment: Experiment) -> ActorKind:
    """Return the actor that `actor.kind` names. Raises ConfigError if the environment has no such actor."""
    offered = actor_kinds(experiment)
    kind, environment = experiment.actor.kind, experiment.environment.name
    if kind not in offered:
        raise ConfigError(f"The {kind} actor does not play {environment}: set actor.kind to {' or '.join(offered)}.")
    return offered[kind]


def actor_kinds(experiment: Experiment) -> dict[str, ActorKind]:
    """Return the actors that can play the environment of this config, by name."""
    offered = extras(experiment.environment)
    general = {REACT: ActorKind(_react)} if offered.plays_text else {}
    if offered.plays_text or offered.tools is not None:
        general[TOOLS] = ActorKind(_tools)
    if offered.choices is not None:
        general[CHOOSER] = _chooser(offered.choices)
    return general | dict(offered.actors)


def scripted_actor(experiment: Experiment) -> str:
    """Return the name of an actor that is a program. Raises ConfigError if the environment has none."""
    programs = [name for name, kind in actor_kinds(experiment).items() if not kind.asks_model]
    if not programs:
        raise ConfigError(f"There is no scripted actor for {experiment.environment.name}, which a warm start needs.")
    return programs[0]

"""Select the actor that a config names: the ReAct actor, or an actor of the environment."""

from retroformer.environments.extras import ActorKind, ActorParts
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError
from retroformer.experiment.config import Experiment
from retroformer.protocols import Actor

REACT = "react"


def _react(parts: ActorParts) -> Actor:
    from retroformer.agents.react import ReactActor

    return ReactActor(parts.model(), parts.pack(), parts.settings.temperature, parts.settings.max_new_tokens)


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
    return general | dict(offered.actors)


def scripted_actor(experiment: Experiment) -> str:
    """Return the name of an actor that is a program. Raises ConfigError if the environment has none."""
    programs = [name for name, kind in actor_kinds(experiment).items() if not kind.asks_model]
    if not programs:
        raise ConfigError(f"There is no scripted actor for {experiment.environment.name}, which a warm start needs.")
    return programs[0]

"""What the arms of a page are: who advises, who acts, and under which names their facts are stored."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from retroformer.arms import FIRST_TRIAL, evaluation
from retroformer.assembly import Parts, make_actor
from retroformer.best_of import best_of
from retroformer.canonical import sha256_of
from retroformer.conditions import conditions
from retroformer.config import Arm, Experiment
from retroformer.environments.sections import Alfworld
from retroformer.errors import ConfigError
from retroformer.prompts import reflection_renderer
from retroformer.protocols import Actor, Reflector
from retroformer.reflectors.baseline import NoReflector, PhraseReflector, PlaceboReflector
from retroformer.reflectors.oracle import OracleReflector
from retroformer.reflectors.rule import RuleReflector
from retroformer.store import Store

Spread = Mapping[str, Arm]
"""Arms with one model each, by their names in the store."""


def spread(name: str, arm: Arm) -> dict[str, Arm]:
    """An arm of the page as it is played: one that pools training seeds once for each of its models."""
    if isinstance(arm.model, str):
        return {evaluation(name): arm}
    return {evaluation(name, model): arm.model_copy(update={"model": model}) for model in arm.model}


def models(arms: Mapping[str, Arm]) -> list[str]:
    """Every model that is asked for advice."""
    asked = [one.model for name, arm in arms.items() for one in spread(name, arm).values() if arm.kind == "model"]
    return sorted({model for model in asked if isinstance(model, str)})


def check_arms(experiment: Experiment) -> None:
    """Refuse what cannot be played, before anything is.

    Raises:
        ConfigError: it says which entry of the page to change.
    """
    arms = experiment.eval.arms
    for name, arm in arms.items():
        here = f"eval.arms.{name}"
        if arm.kind == "placebo" and (arm.of not in arms or arms[arm.of].kind == "placebo"):
            raise ConfigError(f"{here}.of: {arm.of!r} is no arm that writes; name one of {', '.join(arms)}.")
        _check_models(experiment, arm, here)
        if arm.kind in ("rule", "oracle") and not isinstance(experiment.environment, Alfworld):
            raise ConfigError(
                f"{here}.kind: {arm.kind} advice is written for ALFWorld only, not for {experiment.environment.name}; "
                "take none, phrase, model, placebo or retrieved."
            )
        if arm.actor_temperature is not None and experiment.actor.kind == "rule":
            raise ConfigError(
                f"{here}.actor_temperature: the rule-based actor draws nothing; leave it out, or set actor.kind."
            )
        if arm.last_attempt and experiment.actor.kind in ("rule", "household"):
            raise ConfigError(
                f"{here}.last_attempt: the {experiment.actor.kind} actor reads advice alone; leave it out, or set "
                "actor.kind."
            )
    for name in experiment.eval.examples or ():
        if name not in arms:
            raise ConfigError(f"eval.examples: {name!r} is no arm; name two of {', '.join(arms)}.")
    names = Counter([FIRST_TRIAL, *(one for name, arm in arms.items() for one in _names(name, arm))])
    if twice := [name for name, count in names.items() if count > 1]:
        raise ConfigError(f"eval.arms: two arms would be stored as {twice[0]!r}; give one of them another name.")


def reflector_of(experiment: Experiment, made: Parts, store: Store, arm: Arm) -> Reflector:
    """Who advises in an arm with one model. A placebo deals out what its source has written by now."""
    match arm.kind:
        case "none":
            return NoReflector()
        case "phrase":
            return PhraseReflector()
        case "rule":
            return RuleReflector(reflection_renderer(experiment), arm.wording)
        case "oracle":
            from retroformer.environments import alfworld

            assert isinstance(experiment.environment, Alfworld), "check_arms refuses it elsewhere"
            games = alfworld.taskset(experiment.environment, experiment.seed)
            return OracleReflector(reflection_renderer(experiment), games.walkthrough, arm.wording)
        case "model":
            assert isinstance(arm.model, str), "spread gives each arm one model"
            return made.reflector(arm.model, _temperature(experiment, arm))
        case "retrieved":
            from retroformer.reflectors.retrieval import RetrievingReflector, experienced

            known = experiment.eval.retrieval
            return RetrievingReflector(experienced(store, known.days), known.exploration)
        case "placebo":
            sources = spread(arm.of, experiment.eval.arms[arm.of])
            return PlaceboReflector(arm.of, [one for source in sources for one in store.reflections(source)])


def actor_of(experiment: Experiment, made: Parts, arm: Arm) -> Actor:
    """Who plays the retries of an arm: the actor of the page, at the arm's own temperature where it has one."""
    if arm.actor_temperature is None and arm.last_attempt is None:
        return made.actor
    return make_actor(at_arm(experiment, arm), made.connections)


def conditions_of(experiment: Experiment, made: Parts, store: Store, arm: Arm) -> dict[str, Any]:
    """What the facts of an arm with one model depend on."""
    model = arm.model if arm.kind == "model" and isinstance(arm.model, str) else None
    splits = held_out_splits(experiment)
    known = conditions(at_arm(experiment, arm), made.provenance, splits=splits, reflector=model)
    known["reflector"]["temperature"] = _temperature(experiment, arm)
    if model is None:
        known["reflector"]["endpoint"] = {}
    known["arm"] = arm.model_dump()
    if arm.kind == "retrieved":
        from retroformer.reflectors.retrieval import experienced

        retrieval = experiment.eval.retrieval
        known["retrieval"] = retrieval.model_dump()
        if retrieval.days is None:  # With a number of days the memory changes every day, as is asked for.
            pieces = [piece.model_dump(mode="json") for piece in experienced(store, None)]
            known["retrieval"]["experience_sha256"] = sha256_of({"pieces": pieces})
    if arm.kind == "placebo" and len(sources := list(spread(arm.of, experiment.eval.arms[arm.of]))) > 1:
        known["sources"] = sources  # With one more training seed other advice would be dealt out.
    return known


def held_out_splits(experiment: Experiment) -> tuple[str, ...]:
    """The splits that are played for the report."""
    split = experiment.eval.split or experiment.environment.split
    return (split,) if isinstance(split, str) else split


def at_arm(experiment: Experiment, arm: Arm) -> Experiment:
    """The page with what the arm sets for its retries."""
    actor, loop = experiment.actor, experiment.loop
    if arm.actor_temperature is not None:
        actor = actor.model_copy(update={"temperature": arm.actor_temperature})
    if arm.last_attempt is not None:
        loop = loop.model_copy(update={"last_attempt": arm.last_attempt})
    return experiment.model_copy(update={"actor": actor, "loop": loop})


def _temperature(experiment: Experiment, arm: Arm) -> float:
    """Of an arm's reflector. The best of several answers is one of those that collecting would draw."""
    drawn = arm.kind == "model" and isinstance(arm.model, str) and best_of(arm.model)
    return experiment.reflector.temperature if drawn else experiment.eval.temperature


def _check_models(experiment: Experiment, arm: Arm, here: str) -> None:
    if not arm.model:
        raise ConfigError(f"{here}.model: name a model, or several.")
    names = (arm.model,) if isinstance(arm.model, str) else arm.model
    if arm.kind == "model" and any(map(best_of, names)) and not experiment.reflector.temperature:
        raise ConfigError(
            f"{here}.model: the best of several answers is drawn at reflector.temperature, and at 0 all are the same "
            "one; set it above 0."
        )


def _names(name: str, arm: Arm) -> list[str]:
    """With repetitions, unlike `spread`."""
    return [evaluation(name)] if isinstance(arm.model, str) else [evaluation(name, model) for model in arm.model]

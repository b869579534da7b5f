"""The arms of a config: their reflectors, their actors, and the names under which their facts are stored."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from retroformer.agents.baseline import DocumentReflector, NoReflector, PhraseReflector, PlaceboReflector
from retroformer.agents.retrieval import EXPLORATION, RetrievingReflector, experienced
from retroformer.arm_names import FIRST_TRIAL, evaluation, first_trial_with, own_first_trial
from retroformer.environments.extras import AdviceParts
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError, MissingInput
from retroformer.experiment.actors import actor_kind
from retroformer.experiment.best_of import best_of
from retroformer.experiment.conditions import conditions
from retroformer.experiment.config import STORE_FILE, Experiment
from retroformer.experiment.parts import Parts, check_prompts, chosen_tasks, make_actor, make_evaluator
from retroformer.experiment.sections.eval import Arm
from retroformer.experiment.views import reflection_renderer
from retroformer.files.bounded_file import read_text
from retroformer.files.canonical import sha256_of
from retroformer.files.characters import storable
from retroformer.protocols import Agent, Reflector
from retroformer.records import Task, Trajectory
from retroformer.store import Store, StoredReflection

from .experience import sha256_of_attempts, training_attempts
from .learning import TASKS_AT_ONCE

_KINDS = ("none", "phrase", "model", "placebo", "retrieved", "document")
"""Kinds of arms that every environment can play."""
_DOCUMENT_BYTES = 100_000
"""Largest document, in bytes."""


def single_model_arms(name: str, arm: Arm) -> dict[str, Arm]:
    """Split an arm into arms with one model of each role, keyed by their names in the store."""
    if isinstance(arm.actor_model, tuple):
        return {evaluation(name, model): arm.model_copy(update={"actor_model": model}) for model in arm.actor_model}
    if isinstance(arm.model, str):
        return {evaluation(name): arm}
    return {evaluation(name, model): arm.model_copy(update={"model": model}) for model in arm.model}


def reflector_models(arms: Mapping[str, Arm]) -> list[str]:
    """Return every model that writes advice."""
    writers = [
        single.model
        for name, arm in arms.items()
        for single in single_model_arms(name, arm).values()
        if arm.kind == "model"
    ]
    return sorted({model for model in writers if isinstance(model, str)})


def actor_models(experiment: Experiment) -> list[str]:
    """Return the models that act in the retries of an arm in place of the config's actor."""
    named = (arm.actor_model for arm in experiment.eval.arms.values())
    return sorted({model for names in named for model in ((names,) if isinstance(names, str) else names or ())})


def check_arms(experiment: Experiment) -> None:
    """Refuse arms that cannot be played, before any arm starts.

    Raises:
        ConfigError: an arm is invalid; the message names the config entry to change.
    """
    arms = experiment.eval.arms
    for name, arm in arms.items():
        here = f"eval.arms.{name}"
        if arm.kind == "placebo" and (arm.of not in arms or arms[arm.of].kind == "placebo"):
            raise ConfigError(f"{here}.of: {arm.of!r} is not an arm that writes advice; name one of {', '.join(arms)}.")
        _check_models(experiment, arm, here)
        _check_kind(experiment, arm, here)
        _check_actor(experiment, arm, here)
    _check_names(experiment)
    stored = [(name, arm) for title, arm in arms.items() for name in _stored_names(title, arm)]
    shared = {FIRST_TRIAL, *(first_trial_with(arm.prompts) for arm in arms.values() if arm.prompts and not arm.first)}
    own = [own_first_trial(name) for name, arm in stored if arm.first]
    name, count = Counter([*shared, *own, *(name for name, _ in stored)]).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"eval.arms: two arms would be stored as {name!r}; give one of them another name.")


def _check_names(experiment: Experiment) -> None:
    """Refuse comparisons and examples of arms or trials that do not exist. Raises ConfigError."""
    arms, trials = experiment.eval.arms, experiment.loop.trials
    compared = [name for planned in experiment.eval.comparisons for name in (planned.first, planned.second)]
    for key, names in {"examples": experiment.eval.examples or (), "comparisons": compared}.items():
        for name in names:
            if name not in arms:
                raise ConfigError(f"eval.{key}: {name!r} is not an arm; name one of {', '.join(arms)}.")
    for planned in experiment.eval.comparisons:
        if planned.trial is not None and planned.trial >= trials:
            raise ConfigError(
                f"eval.comparisons: trial {planned.trial} is not played with loop.trials={trials}; the last one is "
                f"{trials - 1}."
            )


def reflector_of(experiment: Experiment, components: Parts, store: Store, arm: Arm) -> Reflector:
    """Return the reflector of an arm with one model. A placebo reuses what its source has written so far."""
    match arm.kind:
        case "none":
            return NoReflector()
        case "phrase":
            return PhraseReflector()
        case "model":
            assert isinstance(arm.model, str), "single_model_arms gives each arm one model"
            shown = replace(components, experiment=with_arm_settings(experiment, arm))
            return shown.reflector(arm.model, _temperature(experiment, arm))
        case "retrieved":
            return retrieving_reflector(experiment, store)
        case "document":
            return DocumentReflector(_document(arm))
        case "placebo":
            sources = single_model_arms(arm.of, experiment.eval.arms[arm.of])
            pieces = [piece for source in sources for piece in store.reflections(source)]
            return PlaceboReflector(arm.of, pieces, _suiting(experiment, store, arm))
        case kind:
            render = reflection_renderer(with_arm_settings(experiment, arm))
            parts = AdviceParts(
                experiment.environment,
                experiment.seed,
                render,
                arm.wording,
                attempts=lambda: training_attempts(experiment, arm),
                places=arm.places,
            )
            return extras(experiment.environment).advice[kind].build(parts)


def _document(arm: Arm) -> str:
    """Read the text of an arm's document. Raises MissingInput if there is none."""
    try:
        text = storable(read_text(Path(arm.file), _DOCUMENT_BYTES)).strip()
    except FileNotFoundError:
        text = ""
    if not text:
        raise MissingInput(f"{arm.file!r} has no text: name a document with eval.arms.NAME.file.")
    return text


def _suiting(experiment: Experiment, store: Store, arm: Arm) -> Callable[[Trajectory, StoredReflection], bool]:
    """Return the rule by which a placebo may give a piece of advice about a failure."""
    kind_of = extras(experiment.environment).kind_of
    if arm.among == "any" or kind_of is None:
        return lambda failure, stored: True
    kinds = {
        key.task_id: kind_of(attempt)
        for first_trial in store.arms()
        if first_trial.endswith("/trial 0")
        for key, attempt in store.stream_trajectories(first_trial)
    }
    same = arm.among == "same_kind"
    return lambda failure, stored: (kind_of(failure) == kinds.get(stored.key.task_id)) is same


def retrieving_reflector(experiment: Experiment, store: Store) -> RetrievingReflector:
    """Return the reflector of an arm that retrieves advice. Raises MissingInput if none was collected."""
    return RetrievingReflector(experienced(store, experiment.eval.retrieval_days, leave_out=experiment.train.leave_out))


def agent_of(experiment: Experiment, components: Parts, arm: Arm, reflector: Reflector) -> Agent:
    """Return the agent of an arm: this reflector, and the configured actor with the arm's own settings if it has any.

    A model that judges attempts reads the arm's prompts, too.
    """
    own = with_arm_settings(experiment, arm)
    changed = own.actor != experiment.actor or arm.last_attempt is not None
    agent = components.agent(reflector, make_actor(own, components.connections) if changed else None)
    return agent if arm.prompts is None else replace(agent, evaluator=make_evaluator(own, components.connections))


def conditions_of(experiment: Experiment, components: Parts, store: Store, arm: Arm) -> dict[str, Any]:
    """Return the conditions on which the facts of an arm with one model depend."""
    model = arm.model if arm.kind == "model" and isinstance(arm.model, str) else None
    splits = held_out_splits(experiment)
    stored_conditions = conditions(
        with_arm_settings(experiment, arm), components.provenance, splits=splits, reflector=model
    )
    stored_conditions["reflector"]["temperature"] = _temperature(experiment, arm)
    if model is None:
        stored_conditions["reflector"]["endpoint"] = {}
    stored_conditions["arm"] = arm.model_dump()
    if arm.kind == "retrieved":
        days = experiment.eval.retrieval_days
        stored_conditions["retrieval"] = {"exploration": EXPLORATION, "days": days}
        if days is None:  # A memory limited to some days changes every day by design.
            leave_out = experiment.train.leave_out
            pieces = [piece.model_dump(mode="json") for piece in experienced(store, None, leave_out=leave_out)]
            stored_conditions["retrieval"]["experience_sha256"] = sha256_of({"pieces": pieces})
        if arm.learns:
            # All tasks, not only the first eval.tasks: more of them change no earlier choice. Another order does, and
            # so do more trials, whose gains count for the next tasks.
            order = [task.id for task in chosen_tasks(experiment, None, splits)]
            learning = {"tasks_at_once": TASKS_AT_ONCE, "order_sha256": sha256_of({"tasks": order})}
            stored_conditions["retrieval"]["learning"] = learning | {"trials": experiment.loop.trials}
    if arm.kind == "document":
        stored_conditions["document_sha256"] = sha256_of({"text": _document(arm)})
    if reads_attempts(experiment, arm):
        stored_conditions["experience_sha256"] = sha256_of_attempts(experiment, arm)
    if arm.kind == "placebo":
        # More tasks, one more training seed, or an earlier stop would change the advice that is dealt out.
        ids = [task.id for task in chosen_tasks(experiment, experiment.eval.tasks, splits)]
        dealt = {"count": len(ids), "sha256": sha256_of({"tasks": ids}), "stop": experiment.eval.stop}
        stored_conditions["advice_of_tasks"] = dealt
        if len(sources := list(single_model_arms(arm.of, experiment.eval.arms[arm.of]))) > 1:
            stored_conditions["sources"] = sources
    return stored_conditions


def reads_attempts(experiment: Experiment, arm: Arm) -> bool:
    """Return True if the arm's advice uses the collected attempts of training tasks."""
    kind = extras(experiment.environment).advice.get(arm.kind)
    return kind is not None and kind.reads_attempts


def runs_of_document(arm: Arm) -> list[str]:
    """Return the run in whose folder the arm's document lies; empty if it is in none."""
    return [folder.name for folder in Path(arm.file).parents if (folder / STORE_FILE).is_file()]


def plan_of(experiment: Experiment, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the plan for these tasks as part of the conditions of trial 0, which are stored before anything is played.

    Empty without planned comparisons. Where the arms are played and what that may cost change no result, so they are no
    part of it: an evaluation that has spent its budget goes on with a larger one.
    """
    if not experiment.eval.comparisons:
        return {}
    plan = {"run": experiment.run, "seed": experiment.seed, "trials": experiment.loop.trials}
    section = experiment.eval.model_dump(mode="json", exclude={"backend", "tokens", "dollars"})
    return {"plan_sha256": sha256_of(plan | {"eval": section, "tasks": [task.id for task in tasks]})}


def held_out_splits(experiment: Experiment) -> tuple[str, ...]:
    """Return the splits that the report covers."""
    split = experiment.eval.split or experiment.environment.split
    return (split,) if isinstance(split, str) else split


def with_arm_settings(experiment: Experiment, arm: Arm) -> Experiment:
    """Return the config with the settings of the arm's retries."""
    actor, loop, reflector = experiment.actor, experiment.loop, experiment.reflector
    if arm.prompts is not None:
        actor = actor.model_copy(update={"prompts": arm.prompts})
    if arm.actor_temperature is not None:
        actor = actor.model_copy(update={"temperature": arm.actor_temperature})
    if isinstance(arm.actor_model, str):
        endpoint = actor.endpoint.model_copy(update={"model": arm.actor_model})
        actor = actor.model_copy(update={"endpoint": endpoint})
    if arm.last_attempt is not None:
        loop = loop.model_copy(update={"last_attempt": arm.last_attempt})
    if arm.history is not None:
        reflector = reflector.model_copy(update={"history": arm.history})
    return experiment.model_copy(update={"actor": actor, "loop": loop, "reflector": reflector})


def _temperature(experiment: Experiment, arm: Arm) -> float:
    """Return the temperature of an arm's reflector. Best-of-n samples as collection does."""
    drawn = arm.kind == "model" and isinstance(arm.model, str) and best_of(arm.model)
    return experiment.reflector.temperature if drawn else experiment.eval.temperature


def _check_kind(experiment: Experiment, arm: Arm, here: str) -> None:
    if arm.kind not in (kinds := (*_KINDS, *extras(experiment.environment).advice)):
        raise ConfigError(
            f"{here}.kind: there is no {arm.kind} advice for {experiment.environment.name}; "
            f"take {', '.join(kinds[:-1])} or {kinds[-1]}."
        )
    if arm.learns and arm.kind != "retrieved":
        raise ConfigError(
            f"{here}.learns: only retrieved advice is learned about; leave it out, or set {here}.kind=retrieved."
        )
    if arm.among != "any" and (arm.kind != "placebo" or extras(experiment.environment).kind_of is None):
        raise ConfigError(
            f"{here}.among: only a placebo in an environment whose tasks have kinds is limited to some; leave it out."
        )
    if arm.history is not None and arm.kind != "model":
        raise ConfigError(f"{here}.history: {arm.kind} advice has no prompt; leave it out, or set {here}.kind=model.")
    if arm.kind == "document" and not arm.file:
        raise ConfigError(f"{here}.file: name the text file of the document.")
    if arm.first and not _advises_without_failure(experiment, arm):
        raise ConfigError(
            f"{here}.first: {arm.kind} advice is about a failure, and before the first attempt there is none; leave it "
            "out."
        )
    if arm.file and arm.kind != "document":
        raise ConfigError(f"{here}.file: only a document has a file; leave it out, or set {here}.kind=document.")
    kind = extras(experiment.environment).advice.get(arm.kind)
    if arm.places is not None and not (kind and kind.names_places):
        raise ConfigError(f"{here}.places: {arm.kind} advice has no limit of places; leave it out.")
    if arm.runs and not reads_attempts(experiment, arm):
        raise ConfigError(f"{here}.runs: {arm.kind} advice counts no attempts; leave it out, or set {here}.kind=table.")


def _advises_without_failure(experiment: Experiment, arm: Arm) -> bool:
    kind = extras(experiment.environment).advice.get(arm.kind)
    return arm.kind in ("phrase", "document") or (kind is not None and not kind.reads_failure)


def _check_actor(experiment: Experiment, arm: Arm, here: str) -> None:
    actor = actor_kind(experiment)
    reads_pack = actor.asks_model and actor.reads_pack
    for key, is_set, has_effect, reason in (
        ("actor_temperature", arm.actor_temperature is not None, actor.asks_model, "is a program that samples nothing"),
        ("actor_model", arm.actor_model is not None, actor.asks_model, "is a program without a model"),
        ("prompts", arm.prompts is not None, reads_pack, "reads no prompt pack"),
        ("last_attempt", arm.last_attempt, actor.reads_last_attempt, "reads only advice"),
    ):
        if is_set and not has_effect:
            raise ConfigError(
                f"{here}.{key}: the {experiment.actor.kind} actor {reason}; leave it out, or set actor.kind."
            )
    if arm.prompts is not None:
        if arm.prompts == experiment.actor.prompts:
            raise ConfigError(f"{here}.prompts: {arm.prompts!r} is actor.prompts already; leave it out.")
        check_prompts(with_arm_settings(experiment, arm))


def _check_models(experiment: Experiment, arm: Arm, here: str) -> None:
    if not arm.model:
        raise ConfigError(f"{here}.model: name at least one model.")
    if arm.actor_model is not None and not arm.actor_model:
        raise ConfigError(f"{here}.actor_model: name at least one model, or leave it out.")
    if isinstance(arm.actor_model, tuple) and isinstance(arm.model, tuple):
        raise ConfigError(f"{here}: model and actor_model both name training seeds; give one of them a single name.")
    names = (arm.model,) if isinstance(arm.model, str) else arm.model
    if arm.kind == "model" and any(map(best_of, names)) and not experiment.reflector.temperature:
        raise ConfigError(
            f"{here}.model: the best of several answers is sampled at reflector.temperature, and at 0 all answers are "
            "the same; set it above 0."
        )


def _stored_names(name: str, arm: Arm) -> list[str]:
    """Return the names of an arm in the store, with repetitions, unlike `single_model_arms`."""
    seeds = arm.actor_model if isinstance(arm.actor_model, tuple) else arm.model
    return [evaluation(name)] if isinstance(seeds, str) else [evaluation(name, model) for model in seeds]

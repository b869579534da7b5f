"""Reads the inputs of each stage from the store; a missing input is an error that names the command to run first.

The facts of a config's domains are pooled, in the order of the config.
"""

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence, Sized
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from retroformer.config.conditions import STORED, check_training_facts, rerating
from retroformer.config.experiment import STORE_FILE, Experiment
from retroformer.config.parts import reflection_renderer
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.environments.registry import extras
from retroformer.errors import MissingInput
from retroformer.method.ancestors import memory_of
from retroformer.method.rating import (
    FEW_POSITIVES,
    Rating,
    by_failure,
    count_ratings,
    count_signs,
    preference_pairs,
    ratings,
)
from retroformer.method.records import PreferencePair
from retroformer.run.arm_names import WRITTEN, collect_arm, is_rated
from retroformer.run.stage_metrics import TrainingTasks, training_tasks
from retroformer.run.store import Store, open_whole_store

from .failures import Failure, stored_failures
from .hindsight import RatedArm, View, relabel
from .samples import AdviceText, Prompt, RatedGroup, rated_groups

logger = logging.getLogger(__name__)


def written_advice(experiment: Experiment) -> list[AdviceText]:
    """Read the advice written by rule, with its prompts. Raises MissingInput if there is none."""
    with _open(experiment, "collect warm") as sources:
        advice = list[AdviceText]()
        for store, domain in sources:
            # The actor of a warm start is a program, whatever actor the config names.
            check_training_facts(store, domain, [WRITTEN], ("environment", "reflector"))
            left_out = store.marks.tasks(WRITTEN, domain.train.leave_out)
            written = (row for row in store.stream_reflections(WRITTEN) if row.key.task_id not in left_out)
            advice += [AdviceText(row.reflection.prompt, row.reflection.text) for row in written]
        if not advice:
            raise MissingInput(
                f"No written advice in {_url(sources)}: run `retroformer collect warm EXPERIMENT.yaml` first "
                "(with collect.written above 0)."
            )
        return advice


def advice_to_imitate(experiment: Experiment) -> list[AdviceText]:
    """Read the texts of SFT, as `train.sft` chooses them. Raises MissingInput if there is none."""
    texts = experiment.train.sft.texts
    advice = positive_reflections(experiment) if texts != "hindsight" else []
    return advice + (hindsight(experiment) if texts in ("hindsight", "both") else [])


def positive_reflections(experiment: Experiment) -> list[AdviceText]:
    """Read the reflections with a positive rating, with their prompts. Raises MissingInput if there is none."""
    mixed = experiment.train.sft.texts == "mixed"
    with _open(experiment, "collect") as sources:
        signs = Counter[str]()
        rated = count_signs(_rated(sources), signs)
        positive = [
            AdviceText(rating.prompt, rating.text, rating.is_cut)
            for candidates in by_failure(rated)
            if not mixed or len({rating.rating for rating in candidates}) > 1
            for rating in candidates
            if rating.rating > 0 and rating.text.strip()
        ]
        _refuse_unrated(sources, signs)
        if not positive:
            of_mixed = ", of failures on which some advice helped and some did not" if mixed else ""
            raise MissingInput(
                f"No positively rated reflections{of_mixed} in {_url(sources)} ({signs.total()} are rated, "
                f"{_by_sign(signs)}): {_how_to_get_more(sources)}."
            )
        if len(positive) < FEW_POSITIVES:
            logger.warning(
                "Only %d of %d rated reflections helped, and SFT needs some %d to imitate: %s.",
                *(len(positive), signs.total(), FEW_POSITIVES, _how_to_get_more(sources)),
            )
        return positive


def hindsight(experiment: Experiment) -> list[AdviceText]:
    """Relabel the failures with advice that attempts have proved right. Raises MissingInput if there is none."""
    with _open(experiment, "collect") as sources:
        advice = list[AdviceText]()
        for source in sources:
            domain = source.experiment
            build = extras(domain.environment).hindsight
            advice += relabel(
                _rated_arms([source]),
                build and build(domain.environment),
                _view(domain),
                other_goals=experiment.train.sft.other_goals,
                reads_history=domain.reflector.history == "all",
            )
        if not advice:
            _refuse_unrated(sources, list(_rated(sources)))
            raise MissingInput(
                f"No attempt in {_url(sources)} has proved any advice right: {_how_to_get_more(sources)}, or set "
                "train.sft.texts=rated."
            )
        return advice


def _view(experiment: Experiment) -> View:
    render, capacity = reflection_renderer(experiment), experiment.loop.memory
    return lambda failure, lessons: render(failure, memory_of(lessons, capacity))


def rounds_read(experiment: Experiment, *, recent: bool = False) -> range:
    """Return the rounds that a stage reads: all so far or, with train.iterated, for a stage on `recent` advice its own.

    Recent advice is that of the policy: on other advice a reward model's scores are worth less.
    """
    return range(experiment.round if recent and experiment.train.iterated else 1, experiment.round + 1)


def pairs(experiment: Experiment) -> list[PreferencePair]:
    """Read pairs of recent reflections on one trajectory with different ratings. Raises MissingInput if there is none.

    See `rounds_read` for what is recent.
    """
    with _open(experiment, "collect") as sources:
        # Arms are paired separately: the same trial of the same task is another trajectory in another arm.
        pairs = [
            # Several stories may be of one task, which is held out as a whole.
            pair.model_copy(update={"task_id": tasks[pair.task_id]})
            for arm in _rated_arms(sources, recent=True)
            for tasks in (arm.store.tasks(arm.arm),)
            for pair in preference_pairs(arm.store, arm.arm, arm.anew)
            if pair.task_id not in arm.left_out
        ]
        if not pairs:
            signs = Counter[str]()
            deque(count_signs(_rated(sources, recent=True), signs), maxlen=0)
            _refuse_unrated(sources, signs)
            raise MissingInput(
                f"No preference pairs in {_url(sources)} ({signs.total()} reflections are rated, {_by_sign(signs)}; "
                f"ties make no pairs): {_how_to_get_more(sources)}."
            )
        return pairs


def rated(experiment: Experiment) -> list[Rating]:
    """Read every rated reflection, with the id of its task. Raises MissingInput if there is none."""
    with _open(experiment, "collect") as sources:
        arms = [(store, arm) for store, _ in sources for arm in _arms(store, rounds_read(experiment))]
        tasks = dict(chain.from_iterable(store.tasks(arm).items() for store, arm in arms))
        return [replace(rating, task_id=tasks[rating.task_id]) for rating in _reflections(sources)]


def groups(experiment: Experiment) -> list[RatedGroup]:
    """Read the groups of rated reflections whose ratings differ, of all rounds so far.

    Raises:
        MissingInput: there is none.
        ConfigError: a reflection was stored without its tokens, or was sampled at another temperature than 1.
    """
    with _open(experiment, "collect") as sources:
        groups = rated_groups(_reflections(sources))
        if not groups:
            raise MissingInput(
                f"No failure of the run {experiment.name!r} has reflections with different ratings: "
                f"{_how_to_get_more(sources)}."
            )
        return groups


def prompts(experiment: Experiment) -> list[Prompt]:
    """Read each distinct prompt of the recent rated reflections once. Raises MissingInput if there is none."""
    with _open(experiment, "collect") as sources:
        prompts = list(dict.fromkeys(rating.prompt for rating in _rated(sources, recent=True)))
        _refuse_unrated(sources, prompts)
        return prompts


def failures(experiment: Experiment) -> list[Failure]:
    """Read every failure so far that can be played again, for live returns. Raises MissingInput if there is none."""
    with _open(experiment, "collect") as sources:
        store = sources[0].store
        # Imported logs are left out, since they come from another actor and other environments.
        arms = [collect_arm(number) for number in range(1, experiment.round + 1)]
        check_training_facts(store, experiment, arms)
        failures = stored_failures(store, arms, experiment.loop, experiment.train.leave_out)
        if not failures:
            raise MissingInput(
                f"No collected failures in {store.url}: run `retroformer collect EXPERIMENT.yaml` first, on tasks that "
                "the actor does not solve at once."
            )
        return failures


def written_tasks(experiment: Experiment) -> list[TrainingTasks]:
    """Read all tasks played for advice written by rule, by domain. Raises MissingInput if there is no store."""
    with _open(experiment, "collect warm") as sources:
        return [tasks for store, domain in sources for tasks in _training_tasks(store, domain, [WRITTEN])]


def rated_tasks(experiment: Experiment, rounds: range) -> list[TrainingTasks]:
    """Read all tasks that were played in these rounds, by domain. Raises MissingInput if there is no store.

    Solved ones count, too: hindsight reads their attempts.
    """
    with _open(experiment, "collect") as sources:
        return [tasks for store, domain in sources for tasks in _training_tasks(store, domain, _arms(store, rounds))]


def _training_tasks(store: Store, experiment: Experiment, arms: Sequence[str]) -> list[TrainingTasks]:
    """Return the tasks played in these arms, by the seed under which each arm was played where that makes the tasks."""
    by_seed: dict[int, list[str]] = {experiment.seed: []}
    for arm in arms:
        played = (store.conditions(arm) or {}).get("seed", experiment.seed)
        seed = played if experiment.environment.seeded_tasks else experiment.seed
        by_seed.setdefault(seed, []).extend(store.tasks(arm).values())
    return [training_tasks(experiment.model_copy(update={"seed": seed}), by_seed[seed]) for seed in by_seed]


def both_ratings(experiment: Experiment) -> str:
    """Return the numbers of ratings by the return that the config names, and by the stored return, in lines."""
    rounds = rounds_read(experiment)
    with _open(experiment, "collect") as sources:
        return "\n".join(
            f"{run}reflections by {by}: {count_ratings(ratings(store, arm, anew=anew) for arm in _arms(store, rounds))}"
            for store, domain in sources
            for run in (f"{domain.run}: " if len(sources) > 1 else "",)
            for by, anew in ((experiment.train.rated_by, rerating(domain)), (STORED, None))
        )


class _Source(NamedTuple):
    """Facts of a run, or of one of its domains."""

    store: Store
    experiment: Experiment


def _arms(store: Store, rounds: range) -> list[str]:
    """Return the arms with rated reflections of these rounds."""
    return [arm for arm in store.arms() if is_rated(arm, rounds)]


def _rated_arms(sources: Sequence[_Source], *, recent: bool = False) -> list[RatedArm]:
    """Return the arms to train on, of all domains: one replay buffer (Retroformer, Algorithm 1).

    Raises:
        ConfigError: an arm was collected under other conditions than the config's.
    """
    rated = list[RatedArm]()
    for store, experiment in sources:
        arms, anew = _arms(store, rounds_read(experiment, recent=recent)), rerating(experiment)
        check_training_facts(store, experiment, arms)
        for arm in arms:
            rated.append(RatedArm(store, arm, anew, store.marks.tasks(arm, experiment.train.leave_out)))
    return rated


def _rated(sources: Sequence[_Source], *, recent: bool = False) -> Iterator[Rating]:
    """Yield the ratings of all domains with their reflections."""
    return (
        rating
        for arm in _rated_arms(sources, recent=recent)
        for rating in ratings(arm.store, arm.arm, records=True, anew=arm.anew)
        if rating.task_id not in arm.left_out
    )


def _reflections(sources: Sequence[_Source]) -> list[Rating]:
    """Return the rated reflections of all domains that are not blank. Raises MissingInput if there is none."""
    # A blank text is no advice: its retry tells nothing about advice.
    reflections = [rating for rating in _rated(sources) if rating.text.strip()]
    _refuse_unrated(sources, reflections)
    return reflections


def _refuse_unrated(sources: Sequence[_Source], rated: Sized) -> None:
    """Raise MissingInput if no reflection is rated."""
    if not rated:
        raise MissingInput(f"No rated reflections in {_url(sources)}: run `retroformer collect EXPERIMENT.yaml` first.")


def _how_to_get_more(sources: Sequence[_Source]) -> str:
    """Return what this run can do for more advice that helps, and what another run can do: the end of a sentence."""
    has_lessons = any(extras(source.experiment.environment).lessons for source in sources)
    warm = ", or warm the reflector up first (`retroformer collect warm`, `retroformer train warm`)"
    return (
        "let a stronger model write the advice (reflector.teacher) or use more collect.candidates, in another "
        f"run=NAME, or collect more tasks (collect.tasks){warm if has_lessons else ''}"
    )


def _by_sign(signs: Counter[str]) -> str:
    return ", ".join(f"{signs[sign]} {sign}" for sign in ("positive", "negative", "zero"))


def _url(sources: Sequence[_Source]) -> SecretUrl:
    """Return the address of the store, which all domains share."""
    return sources[0].store.url


@contextmanager
def _open(experiment: Experiment, command: str) -> Iterator[list[_Source]]:
    """Open the facts of the run, or of each of its domains, for reading, without creating a store."""
    if not experiment.has_store:
        raise MissingInput(
            f"No experience at {experiment.folder / STORE_FILE}: run `retroformer {command} EXPERIMENT.yaml` first."
        )
    with ExitStack() as stack:
        yield [
            _Source(stack.enter_context(closing(open_whole_store(domain))), domain) for domain in experiment.each_domain
        ]

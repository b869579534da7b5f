"""Reads the inputs of each stage from the store; a missing input is an error that names the command to run first."""

from collections import Counter, deque
from collections.abc import Iterator, Sized
from contextlib import contextmanager

from retroformer.arm_names import WRITTEN, collecting, is_rated
from retroformer.errors import MissingInput
from retroformer.experiment.conditions import check_training_facts
from retroformer.experiment.config import Experiment
from retroformer.experiment.returns import STORED, rerating
from retroformer.experiment.storage import open_store
from retroformer.preference_pairs import count_ratings, preference_pairs
from retroformer.rating import Rating, counted, rated_reflections, ratings
from retroformer.records import PreferencePair, RatedReflection
from retroformer.store import Store

from .failures import Failure, stored_failures
from .samples import Prompt


def written_advice(experiment: Experiment) -> list[tuple[Prompt, str]]:
    """Read all advice written by rule, with its prompts. Raises MissingInput if there is none."""
    with _open(experiment, "collect warm") as store:
        # The actor of a warm start is a program, whatever actor the config names.
        check_training_facts(store, experiment, [WRITTEN], ("environment", "reflector"))
        advice = [(row.reflection.prompt, row.reflection.text) for row in store.stream_reflections(WRITTEN)]
        if not advice:
            raise MissingInput(
                f"No written advice in {store.url}: run `retroformer collect warm EXPERIMENT.yaml` first "
                "(with collect.written above 0)."
            )
        return advice


def positive_reflections(experiment: Experiment) -> list[tuple[Prompt, str]]:
    """Read the reflections with a positive rating, with their prompts. Raises MissingInput if there is none."""
    with _open(experiment, "collect") as store:
        signs = Counter[str]()
        rated = counted(_rated(store, experiment), signs)
        positive = [(rating.prompt, rating.text) for rating in rated if rating.rating > 0]
        _refuse_unrated(store, signs)
        if not positive:
            raise MissingInput(
                f"No positively rated reflections in {store.url} ({signs.total()} are rated, {_by_sign(signs)}): "
                "collect more tasks or candidates, or warm the reflector up first (`retroformer collect warm`, "
                "`retroformer train warm`)."
            )
        return positive


def pairs(experiment: Experiment) -> list[PreferencePair]:
    """Read pairs of reflections on one trajectory with different ratings. Raises MissingInput if there is none."""
    with _open(experiment, "collect") as store:
        # Arms are paired separately: the same trial of the same task is another trajectory in another arm.
        anew = rerating(experiment)
        pairs = [pair for arm in _rated_arms(store, experiment) for pair in preference_pairs(store, arm, anew)]
        if not pairs:
            signs = Counter[str]()
            deque(counted(_rated(store, experiment), signs), maxlen=0)
            _refuse_unrated(store, signs)
            raise MissingInput(
                f"No preference pairs in {store.url} ({signs.total()} reflections are rated, {_by_sign(signs)}; "
                "ties make no pairs): collect more tasks, or more candidates for each failure."
            )
        return pairs


def rated(experiment: Experiment) -> list[RatedReflection]:
    """Read every rated reflection. Raises MissingInput if there is none."""
    with _open(experiment, "collect") as store:
        arms, anew = _rated_arms(store, experiment), rerating(experiment)
        reflections = [reflection for arm in arms for reflection in rated_reflections(store, arm, anew)]
        _refuse_unrated(store, reflections)
        return reflections


def prompts(experiment: Experiment) -> list[Prompt]:
    """Read each distinct prompt of the rated reflections once. Raises MissingInput if there is none."""
    with _open(experiment, "collect") as store:
        prompts = list(dict.fromkeys(rating.prompt for rating in _rated(store, experiment)))
        _refuse_unrated(store, prompts)
        return prompts


def failures(experiment: Experiment) -> list[Failure]:
    """Read every failure of the rounds so far that can be played again. Raises MissingInput if there is none."""
    with _open(experiment, "collect") as store:
        # Imported logs are left out, since they come from another actor and other environments.
        arms = [collecting(number) for number in range(1, experiment.round + 1)]
        check_training_facts(store, experiment, arms)
        failures = stored_failures(store, arms, experiment.loop)
        if not failures:
            raise MissingInput(
                f"No collected failures in {store.url}: run `retroformer collect EXPERIMENT.yaml` first, on tasks that "
                "the actor does not solve at once."
            )
        return failures


def written_tasks(experiment: Experiment) -> set[str]:
    """Read the ids of all tasks with advice written by rule. Raises MissingInput if there is no store."""
    with _open(experiment, "collect warm") as store:
        return store.reflected_tasks(WRITTEN)


def rated_tasks(experiment: Experiment) -> set[str]:
    """Read the ids of all tasks with reflections of the rounds so far. Raises MissingInput if there is no store."""
    with _open(experiment, "collect") as store:
        arms = [arm for arm in store.arms() if is_rated(arm, experiment.round)]
        return set[str]().union(*map(store.reflected_tasks, arms))


def both_ratings(experiment: Experiment) -> str:
    """Return the numbers of ratings by the return that the config names, and by the stored return, in two lines."""
    with _open(experiment, "collect") as store:
        arms = _rated_arms(store, experiment)
        return "\n".join(
            f"reflections by {name}: {count_ratings(store, arms, anew)}"
            for name, anew in ((experiment.train.rated_by, rerating(experiment)), (STORED, None))
        )


def _rated_arms(store: Store, experiment: Experiment) -> list[str]:
    """Return the arms to train on. Raises ConfigError if one was collected under other conditions than the config's."""
    arms = [arm for arm in store.arms() if is_rated(arm, experiment.round)]
    check_training_facts(store, experiment, arms)
    return arms


def _rated(store: Store, experiment: Experiment) -> Iterator[Rating]:
    """Yield the ratings of all rounds so far, with their reflections."""
    arms, anew = _rated_arms(store, experiment), rerating(experiment)
    return (rating for arm in arms for rating in ratings(store, arm, records=True, anew=anew))


def _refuse_unrated(store: Store, rated: Sized) -> None:
    """Raise MissingInput if no reflection is rated."""
    if not rated:
        raise MissingInput(f"No rated reflections in {store.url}: run `retroformer collect EXPERIMENT.yaml` first.")


def _by_sign(signs: Counter[str]) -> str:
    return ", ".join(f"{signs[sign]} {sign}" for sign in ("positive", "negative", "zero"))


@contextmanager
def _open(experiment: Experiment, command: str) -> Iterator[Store]:
    """Open the run's store for reading, without creating one."""
    if experiment.store is None and not (path := experiment.folder / "experience.db").is_file():
        raise MissingInput(f"No experience at {path}: run `retroformer {command} EXPERIMENT.yaml` first.")
    store = open_store(experiment)
    try:
        yield store
    finally:
        store.close()

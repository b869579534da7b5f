"""What each stage reads from the store, as plain lists; and one sentence where there is nothing to read."""

from collections import Counter, deque
from collections.abc import Iterator, Sized
from contextlib import contextmanager

from retroformer.arms import WRITTEN, collecting, is_rated
from retroformer.conditions import check_training_facts
from retroformer.config import Experiment
from retroformer.errors import MissingInput
from retroformer.rating import Rating, counted, preference_pairs, rated_reflections, ratings
from retroformer.records import PreferencePair, RatedReflection
from retroformer.store import Store, open_store
from train.dataset import Prompt
from train.failures import Failure, stored_failures


def written_advice(experiment: Experiment) -> list[tuple[Prompt, str]]:
    """All advice written by rule, with its prompts. Raises MissingInput where there is none."""
    with _open(experiment, "collect warm") as store:
        # The actor of a warm start is a program, whatever actor the config names.
        check_training_facts(store, experiment, [WRITTEN], ("environment", "reflector"))
        found = [(row.reflection.prompt, row.reflection.text) for row in store.stream_reflections(WRITTEN)]
        if not found:
            raise MissingInput(
                f"No written advice in {store.url}: run `python -m collect warm EXPERIMENT.yaml` first "
                "(with collect.written above 0)."
            )
        return found


def positive_reflections(experiment: Experiment) -> list[tuple[Prompt, str]]:
    """Reflections that made the next trial better, with their prompts. Raises MissingInput where there is none."""
    with _open(experiment, "collect") as store:
        signs = Counter[str]()
        rated = counted(_rated(store, experiment), signs)
        found = [(rating.prompt, rating.text) for rating in rated if rating.rating > 0]
        _refuse_unrated(store, signs)
        if not found:
            raise MissingInput(
                f"No positively rated reflections in {store.url} ({signs.total()} are rated, {_said(signs)}): collect "
                "more tasks or candidates, or warm the reflector up first (`python -m collect warm`, "
                "`python -m train warm`)."
            )
        return found


def pairs(experiment: Experiment) -> list[PreferencePair]:
    """Reflections on one trajectory of which one is rated better. Raises MissingInput where there is none."""
    with _open(experiment, "collect") as store:
        # An arm at a time: the same trial of the same task is another trajectory in another arm.
        found = [pair for arm in _rated_arms(store, experiment) for pair in preference_pairs(store, arm)]
        if not found:
            signs = Counter[str]()
            deque(counted(_rated(store, experiment), signs), maxlen=0)
            _refuse_unrated(store, signs)
            raise MissingInput(
                f"No preference pairs in {store.url} ({signs.total()} reflections are rated, {_said(signs)}; "
                "ties make no pairs): collect more tasks, or more candidates for each failure."
            )
        return found


def rated(experiment: Experiment) -> list[RatedReflection]:
    """Every rated reflection. Raises MissingInput where there is none."""
    with _open(experiment, "collect") as store:
        arms = _rated_arms(store, experiment)
        found = [reflection for arm in arms for reflection in rated_reflections(store, arm)]
        _refuse_unrated(store, found)
        return found


def prompts(experiment: Experiment) -> list[Prompt]:
    """Each different prompt of the rated reflections once. Raises MissingInput where there is none."""
    with _open(experiment, "collect") as store:
        found = list(dict.fromkeys(rating.prompt for rating in _rated(store, experiment)))
        _refuse_unrated(store, found)
        return found


def failures(experiment: Experiment) -> list[Failure]:
    """Every failure of these rounds that was reflected on and can be played again. Raises MissingInput without any."""
    with _open(experiment, "collect") as store:
        # Not those of imported logs: their actor and their environments were others.
        arms = [collecting(number) for number in range(1, experiment.round + 1)]
        check_training_facts(store, experiment, arms)
        found = stored_failures(store, arms, experiment.loop)
        if not found:
            raise MissingInput(
                f"No collected failures in {store.url}: run `python -m collect EXPERIMENT.yaml` first, on tasks that "
                "the actor does not solve at once."
            )
        return found


def _rated_arms(store: Store, experiment: Experiment) -> list[str]:
    """Arms to train on. Raises ConfigError where one was made under other conditions than the config describes."""
    arms = [arm for arm in store.arms() if is_rated(arm, experiment.round)]
    check_training_facts(store, experiment, arms)
    return arms


def _rated(store: Store, experiment: Experiment) -> Iterator[Rating]:
    """The ratings of all rounds so far, with their reflections."""
    return (rating for arm in _rated_arms(store, experiment) for rating in ratings(store, arm, records=True))


def _refuse_unrated(store: Store, found: Sized) -> None:
    """Raises MissingInput where no reflection was rated."""
    if not found:
        raise MissingInput(f"No rated reflections in {store.url}: run `python -m collect EXPERIMENT.yaml` first.")


def _said(signs: Counter[str]) -> str:
    return ", ".join(f"{signs[sign]} {sign}" for sign in ("positive", "negative", "zero"))


@contextmanager
def _open(experiment: Experiment, command: str) -> Iterator[Store]:
    """The store for reading; one that does not exist is not made."""
    if experiment.store is None and not (path := experiment.folder / "experience.db").is_file():
        raise MissingInput(f"No experience at {path}: run `python -m {command} EXPERIMENT.yaml` first.")
    store = open_store(experiment)
    try:
        yield store
    finally:
        store.close()

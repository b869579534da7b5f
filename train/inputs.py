"""What each stage reads from the store, as plain lists; and one sentence where there is nothing to read."""

from collections.abc import Iterator
from contextlib import contextmanager

from retroformer.arms import WRITTEN, collecting, is_rated
from retroformer.config import Experiment
from retroformer.errors import MissingInput
from retroformer.rating import preference_pairs, rated_reflections
from retroformer.records import PreferencePair, RatedReflection
from retroformer.store import Store, open_store
from train.dataset import Prompt
from train.failures import Failure, stored_failures


def written_advice(experiment: Experiment) -> list[tuple[Prompt, str]]:
    """All advice written by rule, with its prompts. Raises MissingInput where there is none."""
    with _open(experiment, "collect warm") as store:
        found = [(row.reflection.prompt, row.reflection.text) for row in store.reflections(WRITTEN)]
        if not found:
            raise MissingInput(
                f"No written advice in {store.url}: run `python -m collect warm EXPERIMENT.yaml` first "
                "(with collect.written above 0)."
            )
        return found


def positive_reflections(experiment: Experiment) -> list[tuple[Prompt, str]]:
    """Reflections that made the next trial better, with their prompts. Raises MissingInput where there is none."""
    with _open(experiment, "collect") as store:
        known = _rated(store, experiment)
        found = [(one.reflection.prompt, one.reflection.text) for one in known if one.rating > 0]
        if not found:
            raise MissingInput(
                f"No positively rated reflections in {store.url} ({len(known)} are rated, {_signs(known)}): collect "
                "more tasks or candidates, or warm the reflector up first (`python -m collect warm`, "
                "`python -m train warm`)."
            )
        return found


def pairs(experiment: Experiment) -> list[PreferencePair]:
    """Reflections on one trajectory of which one is rated better. Raises MissingInput where there is none."""
    with _open(experiment, "collect") as store:
        # An arm at a time: the same trial of the same task is another trajectory in another arm.
        by_arm = [rated_reflections(store, arm) for arm in _rated_arms(store, experiment)]
        found = [pair for some in by_arm for pair in preference_pairs(some)]
        if not found:
            everything = _rated(store, experiment)
            raise MissingInput(
                f"No preference pairs in {store.url} ({len(everything)} reflections are rated, {_signs(everything)}; "
                "ties make no pairs): collect more tasks, or more candidates for each failure."
            )
        return found


def rated(experiment: Experiment) -> list[RatedReflection]:
    """Every rated reflection. Raises MissingInput where there is none."""
    with _open(experiment, "collect") as store:
        return _rated(store, experiment)


def prompts(experiment: Experiment) -> list[Prompt]:
    """Each different prompt of the rated reflections once. Raises MissingInput where there is none."""
    with _open(experiment, "collect") as store:
        return list(dict.fromkeys(one.reflection.prompt for one in _rated(store, experiment)))


def failures(experiment: Experiment) -> list[Failure]:
    """Every failure of these rounds that was reflected on and can be played again. Raises MissingInput without any."""
    with _open(experiment, "collect") as store:
        # Not those of imported logs: their actor and their environments were others.
        arms = [collecting(number) for number in range(1, experiment.round + 1)]
        found = stored_failures(store, arms, experiment.loop)
        if not found:
            raise MissingInput(
                f"No collected failures in {store.url}: run `python -m collect EXPERIMENT.yaml` first, on tasks that "
                "the actor does not solve at once."
            )
        return found


def _rated_arms(store: Store, experiment: Experiment) -> list[str]:
    return [arm for arm in store.arms() if is_rated(arm, experiment.round)]


def _rated(store: Store, experiment: Experiment) -> list[RatedReflection]:
    found = [one for arm in _rated_arms(store, experiment) for one in rated_reflections(store, arm)]
    if not found:
        raise MissingInput(f"No rated reflections in {store.url}: run `python -m collect EXPERIMENT.yaml` first.")
    return found


def _signs(known: list[RatedReflection]) -> str:
    positive, negative = sum(one.rating > 0 for one in known), sum(one.rating < 0 for one in known)
    return f"{positive} positive, {negative} negative, {len(known) - positive - negative} zero"


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

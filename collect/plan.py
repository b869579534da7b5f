"""What `python -m collect EXPERIMENT.yaml --dry-run` says: what is missing, and what it would cost at most."""

from collections.abc import Iterable
from statistics import fmean

from collect.tasks import tasks_of_round
from retroformer.arms import collecting
from retroformer.assembly import Page, check_prompts
from retroformer.config import Experiment
from retroformer.records import Key, Trajectory, Usage
from retroformer.store import StoredReflection, open_store

_GUESS_OF_CALL = Usage(calls=1, prompt_tokens=1500, completion_tokens=60)
"""Of one model call, where nothing has been measured yet."""


def describe_plan(page: Page) -> str:
    """Nothing is called and nothing is stored. The figures are upper bounds: every trial fails, every step is used."""
    experiment = page.experiment
    tasks = tasks_of_round(experiment)
    check_prompts(experiment)
    trajectories, reflections = _stored(experiment)
    retried = (experiment.loop.trials - 1) * experiment.collect.candidates
    rollouts = len(tasks) * (1 + retried * experiment.collect.repeats)
    to_play, to_write = max(0, rollouts - len(trajectories)), max(0, len(tasks) * retried - len(reflections))
    actor_prices = experiment.actor.endpoint.dollars_per_million if experiment.actor.kind != "rule" else None
    played = _mean((one.usage for one in trajectories.values()), experiment.loop.actions if actor_prices else 0)
    written = _mean((one.reflection.usage for one in reflections), 1)
    lines = [
        f"{len(tasks)} tasks of split {experiment.environment.split!r}; the store holds {len(trajectories)} rollouts "
        f"and {len(reflections)} reflections of this run.",
        f"At most {to_play} more rollouts and {to_write} more reflections (every trial fails).",
        _cost("actor", to_play, played, actor_prices or (0.0, 0.0), measured=bool(trajectories)),
        _cost(
            "reflector",
            to_write,
            written,
            experiment.reflector.endpoint.dollars_per_million,
            measured=bool(reflections),
        ),
    ]
    return "\n".join(lines)


def _stored(experiment: Experiment) -> tuple[dict[Key, Trajectory], list[StoredReflection]]:
    """What this run has collected; a store that does not exist yet is not made."""
    if experiment.store is None and not (experiment.folder / "experience.db").is_file():
        return {}, []
    store = open_store(experiment)
    try:
        arm = collecting(experiment.round)
        return store.trajectories(arm), store.reflections(arm)
    finally:
        store.close()


def _mean(usages: Iterable[Usage], guessed_calls: int) -> tuple[float, float]:
    """Prompt and completion tokens of one unit: measured where the store has some, guessed otherwise."""
    known = list(usages)
    if known:
        return fmean(one.prompt_tokens for one in known), fmean(one.completion_tokens for one in known)
    return guessed_calls * _GUESS_OF_CALL.prompt_tokens, guessed_calls * _GUESS_OF_CALL.completion_tokens


def _cost(who: str, units: int, tokens: tuple[float, float], prices: tuple[float, float], *, measured: bool) -> str:
    prompt, completion = units * tokens[0], units * tokens[1]
    dollars = (prompt * prices[0] + completion * prices[1]) / 1e6
    basis = "measured so far" if measured else "guessed"
    tokens_at_most = f"{prompt:,.0f} prompt and {completion:,.0f} completion tokens"
    return f"{who:9} at most {tokens_at_most}, {dollars:,.2f} dollars ({basis})"

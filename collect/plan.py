"""What `python -m collect EXPERIMENT.yaml --dry-run` says: what is missing, and what it would cost at most."""

from contextlib import closing
from typing import NamedTuple

from collect.tasks import tasks_of_round
from retroformer.arms import collecting
from retroformer.assembly import Page, check_prompts
from retroformer.config import Experiment
from retroformer.records import Usage
from retroformer.store import open_store

_GUESS_OF_CALL = Usage(calls=1, prompt_tokens=1500, completion_tokens=60)
"""Of one model call, where nothing has been measured yet."""


def describe_plan(page: Page) -> str:
    """Nothing is called and nothing is stored. The figures are upper bounds: every trial fails, every step is used."""
    experiment = page.experiment
    tasks = tasks_of_round(experiment)
    check_prompts(experiment)
    stored = _stored(experiment)
    retried = (experiment.loop.trials - 1) * experiment.collect.candidates
    rollouts = len(tasks) * (1 + retried * experiment.collect.repeats)
    to_play, to_write = max(0, rollouts - stored.attempts), max(0, len(tasks) * retried - stored.reflections)
    actor_prices = experiment.actor.endpoint.dollars_per_million if experiment.actor.kind != "rule" else None
    played = stored.tokens_of_attempt or _guess(experiment.loop.actions if actor_prices else 0)
    written = stored.tokens_of_reflection or _guess(1)
    lines = [
        f"{len(tasks)} tasks of split {experiment.environment.split!r}; the store holds {stored.attempts} rollouts "
        f"and {stored.reflections} reflections of this run.",
        f"At most {to_play} more rollouts and {to_write} more reflections (every trial fails).",
        _cost("actor", to_play, played, actor_prices or (0.0, 0.0), measured=bool(stored.attempts)),
        _cost(
            "reflector",
            to_write,
            written,
            experiment.reflector.endpoint.dollars_per_million,
            measured=bool(stored.reflections),
        ),
    ]
    return "\n".join(lines)


class _Stored(NamedTuple):
    """What this run has collected, and prompt and completion tokens of a mean attempt and reflection."""

    attempts: int = 0
    reflections: int = 0
    tokens_of_attempt: tuple[float, float] | None = None
    tokens_of_reflection: tuple[float, float] | None = None


def _stored(experiment: Experiment) -> _Stored:
    """A store that does not exist yet is not made."""
    if experiment.store is None and not (experiment.folder / "experience.db").is_file():
        return _Stored()
    arm = collecting(experiment.round)
    with closing(open_store(experiment)) as store:
        return _Stored(store.attempt_count(arm), store.advice_count(arm), *store.mean_tokens(arm))


def _guess(calls: int) -> tuple[float, float]:
    return calls * _GUESS_OF_CALL.prompt_tokens, calls * _GUESS_OF_CALL.completion_tokens


def _cost(who: str, units: int, tokens: tuple[float, float], prices: tuple[float, float], *, measured: bool) -> str:
    prompt, completion = units * tokens[0], units * tokens[1]
    dollars = (prompt * prices[0] + completion * prices[1]) / 1e6
    basis = "measured so far" if measured else "guessed"
    tokens_at_most = f"{prompt:,.0f} prompt and {completion:,.0f} completion tokens"
    return f"{who:9} at most {tokens_at_most}, {dollars:,.2f} dollars ({basis})"

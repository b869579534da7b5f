"""Closing summary of `retroformer collect`: what the store holds about the tasks of a run."""

from retroformer.experiment.config import Experiment
from retroformer.experiment.returns import rerating
from retroformer.preference_pairs import count_ratings
from retroformer.records import Outcome, Task
from retroformer.store import Store


def summary(store: Store, arm: str, tasks: tuple[Task, ...], experiment: Experiment) -> str:
    """Summarise what the store holds about these tasks, in five lines; in six if `train.rated_by` rates them anew.

    Raises:
        ConfigError: `train.rated_by` names no return of this environment.
    """
    chosen = {task.id for task in tasks}
    attempts, first, won = 0, 0, 0
    for attempt in store.attempt_rows(arm):
        if attempt.task_id in chosen:
            attempts += 1
            first += attempt.trial == 0
            won += attempt.trial == 0 and attempt.outcome == Outcome.SUCCESS
    anew, name = rerating(experiment), experiment.train.rated_by
    rated_anew = [] if anew is None else [f"rated anew   by {name}: {count_ratings(store, [arm], anew, chosen)}"]
    usage = store.usage(arm)
    return "\n".join(
        [
            f"tasks        {first} of {len(tasks)} played, {won} solved at trial 0",
            f"rollouts     {attempts} valid, {store.invalid_count(arm)} invalid attempts so far",
            f"reflections  {count_ratings(store, [arm], None, chosen)}",
            *rated_anew,
            f"tokens       {usage.prompt_tokens} prompt, {usage.completion_tokens} completion in {usage.calls} calls, "
            f"{usage.dollars:.2f} dollars",
            f"store        {store.url}",
        ]
    )

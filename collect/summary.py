"""Closing summary of `retroformer collect`: what the store holds about the tasks of a run."""

from collections import Counter

from retroformer.preference_pairs import preferences
from retroformer.rating import counted, ratings
from retroformer.records import Outcome, Task
from retroformer.store import Store


def summary(store: Store, arm: str, tasks: tuple[Task, ...]) -> str:
    """Summarise what the store holds about these tasks, in five lines."""
    chosen = {task.id for task in tasks}
    attempts, first, won = 0, 0, 0
    for attempt in store.attempt_rows(arm):
        if attempt.task_id in chosen:
            attempts += 1
            first += attempt.trial == 0
            won += attempt.trial == 0 and attempt.outcome == Outcome.SUCCESS
    signs = Counter[str]()
    rated = (rating for rating in ratings(store, arm) if rating.task_id in chosen)
    pairs = sum(1 for _ in preferences(counted(rated, signs)))
    usage = store.usage(arm)
    return "\n".join(
        [
            f"tasks        {first} of {len(tasks)} played, {won} solved at trial 0",
            f"rollouts     {attempts} valid, {store.invalid_count(arm)} invalid attempts so far",
            f"reflections  {signs.total()} rated: {signs['positive']} positive, {signs['negative']} negative, "
            f"{signs['zero']} zero; {pairs} pairs",
            f"tokens       {usage.prompt_tokens} prompt, {usage.completion_tokens} completion in {usage.calls} calls, "
            f"{usage.dollars:.2f} dollars",
            f"store        {store.url}",
        ]
    )

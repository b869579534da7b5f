"""Arms that learn from what followed their retrieved advice (`eval.arms.NAME.learns`).

The rule: the tasks, in their official order, are divided into chunks of `TASKS_AT_ONCE`. A choice in a chunk depends on
the gains of all retries of the chunks before it, and on no other outcome of the evaluation. The gain of a retry, its
return minus that of the attempt before, counts for the advice retrieved for it; older advice in memory gets no share.

So a chunk is played once the chunks before it are finished, and its choices depend neither on concurrency, nor on
kills, nor on other processes. More tasks (`eval.tasks`) add chunks at the end and change no earlier choice: a later
evaluation goes on with what this one has learned. No choice depends on an outcome of its own task. Gains stay in the
arm's facts, which no training stage and no other arm reads.
"""

import asyncio
from collections.abc import Sequence

from retroformer.agents.arms.retrieved import TASKS_AT_ONCE, RetrievalGain, RetrievingReflector
from retroformer.method.records import Task
from retroformer.run.attempts import Experience
from retroformer.run.ledger import Ledger
from retroformer.run.progress import tally
from retroformer.run.schedule import Work, work_through
from retroformer.run.store import AttemptRow, Store
from retroformer.run.store.reading import chunks


async def play_and_learn(
    ledger: Ledger,
    learners: Sequence[tuple[Experience, RetrievingReflector]],
    tasks: Sequence[Task],
    concurrency: int,
) -> None:
    """Play the tasks chunk by chunk, the arms side by side, each with a reflector that has learned nothing yet.

    If the infrastructure leaves a task unfinished, the arm's later chunks are left for the next run, too: their choices
    depend on it.

    Raises:
        RetroformerError: the first error of a task.
    """
    title = ", ".join(experience.arm.removeprefix("eval/") for experience, _ in learners)
    with tally(title, len(learners) * len(tasks)) as counts:
        for experience, _ in learners:
            experience.on_event = counts.count
        for chunk in chunks(tasks, TASKS_AT_ONCE):
            playing = [learner for learner in learners if not learner[0].unfinished]
            works = [Work(experience, chunk) for experience, _ in playing]
            await work_through(ledger, works, concurrency, counts.done)
            for experience, reflector in playing:
                ids = [task.id for task in chunk]
                gains = await ledger.ask(retrieval_gains, ledger.store, experience.arm, experience.first_trial_arm, ids)
                # Thousands of pieces of advice are rated anew, which would block the event loop.
                await asyncio.to_thread(reflector.learn, gains)
    for experience, _ in learners:
        # The tasks of the chunks after an unfinished task are unfinished, too.
        unfinished = [place for place, task in enumerate(tasks) if task.id in experience.unfinished]
        if unfinished:
            next_chunk = (unfinished[0] // TASKS_AT_ONCE + 1) * TASKS_AT_ONCE
            experience.unfinished |= {task.id for task in tasks[next_chunk:]}


def retrieval_gains(store: Store, arm: str, shared: str, task_ids: Sequence[str]) -> list[RetrievalGain]:
    """Return the gains of the retries of these tasks that were made with retrieved advice, in the order of their keys.

    `shared` is the name of trial 0 in the store.
    """
    rows: list[AttemptRow] = [row for name in (shared, arm) for row in store.attempt_rows(name, task_ids)]
    returns = {(row.task_id, row.trial): row.episode_return for row in rows}
    gains = []
    for key, _, reflection, _ in store.stream_reflections(arm, task_ids):
        after, before = returns.get((key.task_id, key.trial)), returns.get((key.task_id, key.trial - 1))
        if after is not None and before is not None and reflection.text:
            gains.append(RetrievalGain(reflection.text, after - before))
    return gains

"""Plays the arms in the order that their advice needs: trial 0, most arms, those that learn, and last the placebos.

The rule of learning (`eval.arms.NAME.learns`): the tasks, in their official order, are divided into chunks of
`TASKS_AT_ONCE`. A choice in a chunk depends on the gains of all retries of the chunks before it, and on no other
outcome of the evaluation. The gain of a retry, its return minus that of the attempt before, counts for the advice
retrieved for it; older advice in memory gets no share.

So a chunk is played once the chunks before it are finished, and its choices depend neither on concurrency, nor on
kills, nor on other processes. More tasks (`eval.tasks`) add chunks at the end and change no earlier choice. Gains stay
in the arm's facts, which no training stage and no other arm reads.
"""

import asyncio
from collections.abc import Collection, Sequence

from retroformer.agents.arms.baselines import PlaceboArm
from retroformer.agents.arms.retrieved import TASKS_AT_ONCE, RetrievalGain, RetrievedArm, RetrievingReflector
from retroformer.errors import InfrastructureFailure
from retroformer.method.records import Task
from retroformer.run.attempts import Experience
from retroformer.run.ledger import Ledger
from retroformer.run.progress import tally
from retroformer.run.schedule import Work, work_through
from retroformer.run.store import AttemptRow, Store
from retroformer.run.store.reading import chunks

from .evaluation import Evaluation
from .preflight import warn_of_equal_openings

_MOST_UNFINISHED = 0.1
"""Largest share of unfinished tasks of an arm whose advice a placebo deals out."""


async def play_arms(evaluation: Evaluation) -> None:
    """Play each trial 0 once, then the arms side by side, then those that learn, and last the placebos.

    Raises RetroformerError: the first error of a task, or a source of placebos has too many unfinished ones.
    """
    arms = evaluation.experiment.eval.arms
    stored = evaluation.stored_names
    placebos = {name: arm for name, arm in arms.items() if isinstance(arm, PlaceboArm)}
    learning = [name for name, arm in arms.items() if isinstance(arm, RetrievedArm) and arm.learns]

    async def retry(names: Collection[str]) -> dict[str, Experience]:
        singles = [single for name in names for single in stored[name]]
        return await evaluation.play(", ".join(names), singles) if singles else {}

    await evaluation.play("trial 0", evaluation.first_trials)
    for first in evaluation.first_trials:
        await evaluation.ledger.ask(warn_of_equal_openings, evaluation.store, evaluation.tasks, first)
    played = await retry([name for name in arms if name not in {*placebos, *learning}])
    learners = []
    for single in [single for name in learning for single in stored[name]]:
        played[single], reflector = evaluation.experience(single), evaluation.arms[single].reflector
        assert isinstance(reflector, RetrievingReflector), "these arms retrieve advice"
        learners.append((played[single], reflector))
    if learners:
        await play_and_learn(evaluation.ledger, learners, evaluation.tasks, evaluation.experiment.loop.concurrency)
    for source in dict.fromkeys(arm.of for arm in placebos.values()):
        for single in stored[source]:
            _refuse_unfinished_source(evaluation.store, played[single])
    await retry(placebos)


def _refuse_unfinished_source(store: Store, source: Experience) -> None:
    """Raise InfrastructureFailure if a source is unfinished: a placebo draws from everything that its source wrote.

    A few tasks may stay unfinished for good, as an endpoint may refuse a text whenever it is asked.
    """
    played = store.played_tasks(source.first_trial_arm)
    if len(unfinished := source.unfinished & played) > _MOST_UNFINISHED * len(played):
        # The causes of trial 0 are stored apart from those of the arms that share it.
        cause = store.last_cause(source.arm) or store.last_cause(source.first_trial_arm)
        raise InfrastructureFailure(
            f"Arm {source.arm.removeprefix('eval/')!r} left {len(unfinished)} tasks unfinished, so its advice cannot "
            f"be dealt out yet: run the same command again to go on. The last cause: {cause}"
        )


async def play_and_learn(
    ledger: Ledger,
    learners: Sequence[tuple[Experience, RetrievingReflector]],
    tasks: Sequence[Task],
    concurrency: int,
) -> None:
    """Play the tasks chunk by chunk, the arms side by side, each with a reflector that has learned nothing yet.

    If the infrastructure leaves a task unfinished, the arm's later chunks are left for the next run, too: their choices
    depend on it. Raises RetroformerError: the first error of a task.
    """
    title = ", ".join(experience.arm.removeprefix("eval/") for experience, _ in learners)
    with tally(title, len(learners) * len(tasks)) as counts:
        for experience, _ in learners:
            experience.on_event = counts.count
        for chunk in chunks(tasks, TASKS_AT_ONCE):
            for experience, _ in learners:
                if experience.unfinished:
                    experience.unfinished |= {task.id for task in chunk}
            playing = [learner for learner in learners if not learner[0].unfinished]
            works = [Work(experience, chunk) for experience, _ in playing]
            await work_through(ledger, works, concurrency, counts.done)
            for experience, reflector in playing:
                ids = [task.id for task in chunk]
                gains = await ledger.ask(retrieval_gains, ledger.store, experience.arm, experience.first_trial_arm, ids)
                # Thousands of pieces of advice are rated anew, which would block the event loop.
                await asyncio.to_thread(reflector.learn, gains)


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

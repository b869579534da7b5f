"""The arm that retrieves advice which helped on similar tasks (proposed in Reflexion, section 5), and its reflector.

The score of a piece of advice is the similarity of its task times an upper confidence bound of its realised ratings
(UCB1, Auer et al. 2002), so that advice that has often helped comes first and rarely used advice is tried, too.

A reflector can also learn from its retrievals: the gain of a retry that was made with a piece of advice then counts
like one more rating of it, in its mean and in its number of uses. Gains count for later tasks only, in a fixed order of
the tasks; eval/play/order.py has the rule.

Everything that does not depend on the failure is computed once: the usefulness of each piece, and an inverted index of
the openings. A retrieval then adds up one array for each word of the failed task's opening.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from retroformer.agents.arms.arm import Arm, ArmParts
from retroformer.errors import MissingInput
from retroformer.files.text import sha256_of
from retroformer.method.records import Author, Memory, Record, Reflection, Sampling, Trajectory
from retroformer.run.arm_names import is_rated

if TYPE_CHECKING:  # A config is read without numpy and the database's packages.
    from retroformer.run.store import Store

EXPLORATION = 0.3
"""Weight of rarely used advice against advice that has paid off (c of UCB1, in units of return); returns are between 0
and 1 in all environments here."""
TASKS_AT_ONCE = 10
"""Number of tasks after which the arm learns from their gains: fewer would leave endpoints idle, and with more, later
tasks would learn less."""


class RetrievedArm(Arm):
    """Advice collected on other tasks, chosen by task similarity and realised rating."""

    kind: Literal["retrieved"] = "retrieved"
    learns: bool = False
    """If true, the gain of each retry counts for the advice that it was made with, when advice for later tasks is
    chosen. Tasks are then played ten at a time, and every choice depends on their order."""

    def build(self, parts: ArmParts) -> "RetrievingReflector":
        """Return the reflector, which has learned nothing yet. Raises MissingInput if no advice was collected."""
        return RetrievingReflector(load_rated_advice(parts.store, parts.leave_out))

    def conditions(self, parts: ArmParts) -> dict[str, Any]:
        pieces = [piece.model_dump(mode="json") for piece in load_rated_advice(parts.store, parts.leave_out)]
        conditions: dict[str, Any] = {"advice_sha256": sha256_of({"pieces": pieces})}
        if self.learns:
            # All tasks, not only the first eval.tasks: more of them change no earlier choice. Another order does, and
            # so do more trials, whose gains count for the next tasks.
            order = sha256_of({"tasks": [task.id for task in parts.split_tasks()]})
            learning = {"tasks_at_once": TASKS_AT_ONCE, "order_sha256": order, "trials": parts.setting.trials}
            conditions["learning"] = learning
        return {"retrieval": conditions}

    def experience_of(self, run: str) -> Mapping[str, Sequence[str]]:
        return {run: ()}

    def describe(self) -> str:
        learned = ", and by what they brought in earlier tasks of this evaluation" if self.learns else ""
        return f"reflections collected on other tasks, retrieved by similarity and rating{learned}"


class RatedAdvice(Record):
    """One use of a piece of advice, with its source and rating."""

    text: str
    opening: str
    """Opening of the task that it was written for."""
    source: str
    """Provenance: run, arm, task, trial and candidate."""
    task_id: str
    rating: float


class RetrievalGain(NamedTuple):
    """Gain of a retry that was made with a retrieved piece of advice: its return minus that of the attempt before."""

    text: str
    gain: float


class AdviceRecord(NamedTuple):
    """A piece of advice with all its uses."""

    uses: tuple[RatedAdvice, ...]
    gains: tuple[float, ...] = ()
    """Gains of the retries for which it was retrieved."""

    @property
    def text(self) -> str:
        return self.uses[0].text

    @property
    def trials(self) -> int:
        """Number of its uses and retrievals."""
        return len(self.uses) + len(self.gains)

    @property
    def rating(self) -> float:
        """Mean of the ratings of its uses and of the gains of its retrievals."""
        return fmean((*(use.rating for use in self.uses), *self.gains))


def load_rated_advice(store: "Store", leave_out: Sequence[str] = ()) -> list[RatedAdvice]:
    """Return the rated advice on a run's training tasks; never advice of the evaluation.

    Stories with a mark of `leave_out` are left out.
    """
    from retroformer.method.rating import ratings

    advice = []
    for arm in filter(is_rated, store.arms()):
        openings = {key.task_id: attempt.opening for key, attempt in store.stream_trajectories(arm)}
        left_out = store.marks.tasks(arm, leave_out)
        for rated in ratings(store, arm):
            if rated.task_id in left_out:
                continue
            source = f"{store.experiment}/{arm}/{rated.task_id}/{rated.trial}.{rated.candidate}"
            advice.append(
                RatedAdvice(
                    text=rated.text,
                    opening=openings[rated.task_id],
                    source=source,
                    task_id=rated.task_id,
                    rating=rated.rating,
                )
            )
    return advice


class RetrievingReflector:
    """Reflector that retrieves advice written for other tasks instead of writing any.

    Raises:
        MissingInput: there is no advice.
    """

    def __init__(self, advice: Iterable[RatedAdvice], exploration: float = EXPLORATION) -> None:
        from retroformer.agents.arms.similarity import Similarity

        by_text = defaultdict[str, list[RatedAdvice]](list)
        for use in advice:
            by_text[one_line(use.text)].append(use)
        self._pieces = [AdviceRecord(tuple(uses)) for text, uses in sorted(by_text.items()) if text]
        if not self._pieces:
            raise MissingInput("The memory of other tasks is empty: run `retroformer collect EXPERIMENT.yaml` first.")
        self._exploration = exploration
        self._similarity = Similarity([piece.uses[0].opening for piece in self._pieces])
        self._rate()
        self._by_text = {piece.text: number for number, piece in enumerate(self._pieces)}
        self._by_task = defaultdict[str, list[int]](list)
        for number, piece in enumerate(self._pieces):
            for task_id in {use.task_id for use in piece.uses}:
                self._by_task[task_id].append(number)

    def _rate(self) -> None:
        import numpy as np

        self._total_trials = sum(piece.trials for piece in self._pieces)
        self._usefulness = np.array([self.usefulness(piece) for piece in self._pieces])

    def learn(self, retrievals: Iterable[RetrievalGain]) -> None:
        """Count these gains, in any order, for the pieces of the same texts; a text that is no piece is skipped."""
        gains = defaultdict[str, list[float]](list)
        for text, gain in retrievals:
            gains[one_line(text)].append(gain)
        self._pieces = [
            piece._replace(gains=(*piece.gains, *gains[text])) if (text := one_line(piece.text)) in gains else piece
            for piece in self._pieces
        ]
        self._rate()

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return the best piece that is not in memory yet, with its source; blank if none is left."""
        # With many pieces it takes milliseconds, in which the event loop must not be blocked.
        best = await asyncio.to_thread(self._best, trajectory, memory)
        if best is None:
            return Reflection(text="", prompt=(), author=Author(endpoint="memory", model="none"))
        author = Author(endpoint="memory", model=best.uses[0].source)
        return Reflection(text=best.text, prompt=(), author=author, sampling=Sampling(seed=seed))

    def _best(self, trajectory: Trajectory, memory: Memory) -> AdviceRecord | None:
        """Return the allowed piece with the highest score, the first by text among equals; None if there is none."""
        scores = self._similarity.to(trajectory.opening) * self._usefulness
        held = [self._by_text[text] for text in memory.reflections if text in self._by_text]
        scores[[*held, *self._by_task.get(trajectory.task.id, ())]] = -1.0
        best = int(scores.argmax())
        return self._pieces[best] if scores[best] >= 0 else None

    def usefulness(self, piece: AdviceRecord) -> float:
        """Return the upper confidence bound of the rating, at least 0."""
        total = self._total_trials
        bonus = self._exploration * math.sqrt(2 * math.log(total) / piece.trials) if total > 1 else 0.0
        return max(0.0, piece.rating + bonus)


def one_line(text: str) -> str:
    """Return the text with single blanks, by which pieces of advice are told apart."""
    return " ".join(text.split())

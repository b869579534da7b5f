"""Which advice was retrieved how often, and what the retries brought that were made with it."""

from statistics import fmean

from retroformer.agents.retrieval import RetrievedArm, load_rated_advice, one_line
from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.markdown import code, plain, quoted, share, table
from retroformer.records import Outcome

from .input import ReportInput

_PIECES_SHOWN = 10
"""Most pieces of advice shown of each arm, the most often retrieved first."""
_ADVICE_SHOWN = 160
"""Most characters shown of one piece; the store has all."""
_NOTE = (
    "The gain of a retry is its return minus that of the attempt before. The rating while collecting is the mean gain "
    "on the training tasks, with the number of uses. Older advice that the actor still remembers is not credited."
)
_LEARNING = (
    " An arm that learns counts these gains when it chooses advice for later tasks. A choice depends on the tasks in "
    "the chunks before its own, never on the outcome of its own task."
)


class _Piece:
    """Retries made with one piece of advice."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text, source
        self.gains: list[float] = []
        self.solved = 0


class RetrievedAdvice:
    """Counter of retrievals and of their gains, by arm and piece of advice."""

    def __init__(self, report_input: ReportInput) -> None:
        experiment = report_input.experiment
        self._input = report_input
        self._arms = {name: arm for name, arm in experiment.eval.arms.items() if isinstance(arm, RetrievedArm)}
        self._results = [arm for arm in report_input.results if arm.name in self._arms]
        self._pieces: dict[str, dict[str, _Piece]] = {arm.name: {} for arm in self._results}

    def add(self, facts: TaskFacts) -> None:
        """Count the retries of one task."""
        for arm in self._results:
            for stored in arm.stored_names:
                self._add(self._pieces[arm.name], facts.seeds[stored])

    def _add(self, pieces: dict[str, _Piece], seed: SeedFacts) -> None:
        for trial, reflection in seed.reflections.items():
            before, after = seed.attempts.get(trial - 1), seed.attempts.get(trial)
            if before is None or after is None or not reflection.text:
                continue
            piece = pieces.setdefault(one_line(reflection.text), _Piece(reflection.text, reflection.author.model))
            piece.gains.append(after.episode_return - before.episode_return)
            piece.solved += after.outcome is Outcome.SUCCESS

    def render(self) -> str:
        """Render a row for each arm, and one for each of its pieces; empty if nothing was retrieved."""
        if not any(self._pieces.values()):
            return ""
        ratings = self._ratings()
        arms = [self._arm_row(name, list(pieces.values())) for name, pieces in self._pieces.items()]
        rows = [
            [
                plain(name),
                quoted(piece.text, _ADVICE_SHOWN),
                code(piece.source),
                _mean(ratings.get(one_line(piece.text), [])),
                *_brought(piece.gains, piece.solved),
            ]
            for name, pieces in self._pieces.items()
            for piece in sorted(pieces.values(), key=lambda piece: (-len(piece.gains), piece.text))[:_PIECES_SHOWN]
        ]
        header = ["retries", "mean gain", "solved"]
        by_arm = table(["arm", "learns", "pieces retrieved", *header], arms, "Retrieved advice by arm.")
        columns = ["arm", "advice", "written for", "rating while collecting", *header]
        by_piece = table(columns, rows, f"The {_PIECES_SHOWN} pieces that each arm retrieved most often.")
        learning = _LEARNING if any(self._arms[arm.name].learns for arm in self._results) else ""
        return f"{_NOTE}{learning}\n\n{by_arm}\n\n{by_piece}"

    def _arm_row(self, name: str, pieces: list[_Piece]) -> list[str]:
        gains = [gain for piece in pieces for gain in piece.gains]
        learns = "yes" if self._arms[name].learns else "no"
        return [plain(name), learns, str(len(pieces)), *_brought(gains, sum(piece.solved for piece in pieces))]

    def _ratings(self) -> dict[str, list[float]]:
        """Return the ratings of the collected advice by its text."""
        ratings: dict[str, list[float]] = {}
        experiment = self._input.experiment
        for use in load_rated_advice(self._input.store, experiment.train.leave_out):
            ratings.setdefault(one_line(use.text), []).append(use.rating)
        return ratings


def _brought(gains: list[float], solved: int) -> list[str]:
    return [str(len(gains)), f"{fmean(gains):+.3f}" if gains else "-", share(solved, len(gains))]


def _mean(ratings: list[float]) -> str:
    return f"{fmean(ratings):+.3f} ({len(ratings)})" if ratings else "-"

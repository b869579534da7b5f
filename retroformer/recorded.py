"""Runs that another program recorded, in the form in which this project stores its own."""

from retroformer.records import Author, Key, Memory, RatedReflection, Record, Reflection, Trajectory


class RecordedAttempt(Record):
    """One attempt with the actor's memory. Trials count from 0."""

    key: Key
    trajectory: Trajectory
    memory: Memory
    returns: dict[str, float]
    """Returns of the attempt, by name."""


class RecordedReflection(Record):
    """Advice on `failed`, used in `retried`, whose key it has. Its prompt is (), as the logs did not keep it."""

    key: Key
    reflection: Reflection
    failed: RecordedAttempt
    retried: RecordedAttempt

    def rated(self, returned: str) -> RatedReflection:
        """Return the advice with the returns before and after it."""
        before, after = self.failed.returns[returned], self.retried.returns[returned]
        return RatedReflection(
            key=self.key,
            previous_candidate=self.failed.key.candidate,
            reflection=self.reflection,
            return_before=before,
            returns_after=(after,),
        )


class Counts(Record):
    """Numbers of ratings by sign."""

    rated: int
    positive: int
    negative: int
    zero: int


class RecordedLogs(Record):
    """Content of the logs, with attempts in the order of task and trial."""

    author: Author
    """Author of the reflections."""
    rated_by: str
    """Name of the return that rewards the last step of an attempt."""
    return_names: tuple[str, ...]
    attempts: tuple[RecordedAttempt, ...]
    reflections: tuple[RecordedReflection, ...]
    skipped: dict[str, int]
    """Numbers of entries that were read but not used, by kind and reason."""

    def counts(self, returned: str) -> Counts:
        """Count the reflections by the sign of their rating."""
        ratings = [reflection.rated(returned).rating for reflection in self.reflections]
        positive, negative = sum(rating > 0 for rating in ratings), sum(rating < 0 for rating in ratings)
        zero = len(ratings) - positive - negative
        return Counts(rated=len(ratings), positive=positive, negative=negative, zero=zero)

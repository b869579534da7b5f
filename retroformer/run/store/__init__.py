"""Store of experience: immutable facts under natural keys, in SQLite (WAL) or PostgreSQL."""

from retroformer.run.store.facts import Store
from retroformer.run.store.rows import (
    AdviceRow,
    AttemptRow,
    NewInvalid,
    NewReflection,
    NewTrajectory,
    RatingRow,
    StoredReflection,
)

__all__ = [
    "AdviceRow",
    "AttemptRow",
    "NewInvalid",
    "NewReflection",
    "NewTrajectory",
    "RatingRow",
    "Store",
    "StoredReflection",
]

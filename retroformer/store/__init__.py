"""Store of experience: immutable facts under natural keys, in SQLite (WAL) or PostgreSQL."""

from retroformer.store.facts import Store
from retroformer.store.rows import (
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

"""Store of experience: immutable facts under natural keys, in SQLite (WAL) or PostgreSQL."""

from retroformer.run.store.facts import Store, open_store, open_whole_store
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
    "open_store",
    "open_whole_store",
]

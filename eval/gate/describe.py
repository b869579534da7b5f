"""Promotions in words, and as a table."""

from collections.abc import Sequence
from pathlib import Path

from retroformer.experiment.file import load_domains
from retroformer.markdown import table
from retroformer.promotions.history import History, name_of
from retroformer.promotions.promotion import Promotion

_HEADER = ("number", "time (UTC)", "what", "reflector", "before", "evidence or reason")


def run_history(config: Path, overrides: Sequence[str]) -> History:
    """Return the promotions of the run that a config names. Raises ConfigError, MissingInput."""
    return History(load_domains(config, overrides)[0].folder)


def sentence_of(promotion: Promotion) -> str:
    """Return what has changed."""
    return f"{promotion.kind}: reflector is {name_of(promotion.adapter)}, it was {name_of(promotion.replaced)}."


def table_of(records: Sequence[Promotion]) -> str:
    """Return all promotions as a table; a sentence if there are none."""
    if not records:
        return (
            "Nothing is recorded yet: `retroformer serve` records the first adapter, `retroformer promote` every other."
        )
    rows = [
        [
            str(record.number),
            f"{record.at:%Y-%m-%d %H:%M}",
            record.kind,
            name_of(record.adapter),
            name_of(record.replaced),
            "; ".join(text for text in (record.reason, str(record.evidence or "")) if text),
        ]
        for record in records
    ]
    return table(list(_HEADER), rows)

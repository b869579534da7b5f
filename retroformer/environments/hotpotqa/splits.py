"""Splits that a rule defines, so that everyone with the public questions gets the same ones.

`train_N` and `validation_N` are the N questions of HotPotQA's training or development set whose ids have the smallest
sha256, in ascending order of that hash. Neither the order of a file nor a seed matters, and `train_10` begins
`train_3000`.
"""

import hashlib
import re
from collections.abc import Callable, Iterable

from retroformer.errors import MissingInput

_NAME = re.compile(r"(train|validation)_([1-9][0-9]{0,6})")
SPLITS_BY_RULE = "train_N, validation_N"
"""Names of these splits, for messages."""


def split_by_rule(name: str, released: Callable[[str], Iterable[str]], where: str) -> list[str] | None:
    """Return the ids of a split that the rule defines, or None if the name is not of this form.

    Args:
        name: name of the split, such as `train_3000`.
        released: returns the ids of one of the sets `train` and `validation` (the development set).
        where: the data, for the message.

    Raises:
        MissingInput: the data have fewer questions of that set.
    """
    if not (match := _NAME.fullmatch(name)):
        return None
    origin, count = match[1], int(match[2])
    ids = sorted(released(origin), key=_hash)
    if len(ids) < count:
        raise MissingInput(
            f"Split {name!r} needs {count} questions of HotPotQA's {origin} set, and {where} has {len(ids)}: name a "
            f"smaller split, or add the questions with `split` set to {origin!r} in questions.jsonl."
        )
    return ids[:count]


def ids_sha256(ids: Iterable[str]) -> str:
    """Return the sha256 of a list of ids, each followed by a newline; the documentation states it for known data."""
    return hashlib.sha256("".join(f"{id_}\n" for id_ in ids).encode()).hexdigest()


def _hash(question_id: str) -> bytes:
    return hashlib.sha256(question_id.encode()).digest()

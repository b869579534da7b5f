"""Tasks of a user's own, from a JSON lines file: an `id`, perhaps a `split`, and whatever the agent needs."""

import json
from pathlib import Path
from typing import Any

from retroformer.errors import MissingInput
from retroformer.files.bounded import MIB, json_rows
from retroformer.files.text import is_storable

_LINE_BYTES, _FILE_BYTES = 16 * MIB, 4096 * MIB
_WANTED = 'a task is an object such as {"id": "sum-1", "input": "What is 2 + 3?"}'
_OPENING = ("input", "prompt", "question", "task")
"""Fields of a task that hold its text, the first that is there."""


def read_tasks(path: Path | None, split: str) -> dict[str, dict[str, Any]]:
    """Return the tasks of the split by id, in the order of the file.

    Raises:
        MissingInput: there is no file, or a line of it is not a task.
    """
    if path is None:
        raise MissingInput("Set environment.data to the JSON lines file with the tasks.")
    if not path.is_file():
        raise MissingInput(f"There is no file {path} with the tasks: correct environment.data.")
    tasks: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for task in json_rows(path, _task, _WANTED, line_bytes=_LINE_BYTES, most_bytes=_FILE_BYTES):
        if task["id"] in seen:
            raise MissingInput(f"The task {task['id']!r} is twice in {path}: give every task an id of its own.")
        seen.add(task["id"])
        if task.get("split", "train") == split:
            tasks[task["id"]] = task
    return tasks


def _task(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    if isinstance(value["id"], int) and not isinstance(value["id"], bool):
        value["id"] = str(value["id"])
    if not (isinstance(value["id"], str) and value["id"] and is_storable(value["id"])):
        raise ValueError("id is neither a text nor a number")
    if not isinstance(value.get("split", ""), str):
        raise ValueError("split is not a text")
    return value


def opening_of(task: dict[str, Any]) -> str:
    """Return the text of a task, which the reflector reads: its `input`, or else all of it but id and split."""
    for name in _OPENING:
        if name in task:
            return task[name] if isinstance(task[name], str) else json.dumps(task[name], ensure_ascii=False)
    return json.dumps({name: value for name, value in task.items() if name not in ("id", "split")}, ensure_ascii=False)

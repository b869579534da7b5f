"""Reads the rollouts that an evaluation of verifiers has saved: results.jsonl, with metadata.json beside it.

An example is a task, and its rollouts, in the order of the file, are the attempts at it. The package's own reader
leaves malformed lines out with a log message, so lines are read and checked here.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, JsonValue, StrictInt, ValidationError

from retroformer.agents.messages import clean_messages
from retroformer.cases.case import CaseAttempt, CaseTask
from retroformer.cases.traced import Omission, TracedAttempt, advice_in
from retroformer.errors import MissingInput
from retroformer.files.bounded import GIB, MIB, first_fault, json_rows, parse_json, read_text, sha256
from retroformer.files.text import json_value
from retroformer.method.records import Tokens, Usage, content_text

_FILE, _METADATA = "results.jsonl", "metadata.json"
_LINE_BYTES, _FILE_BYTES = 64 * MIB, 64 * GIB
_CRASHED = Omission(reason="rollouts that ended in an error")
_UNSCORED = Omission(reason="rollouts without a score of this name")
_COPIED = Omission(reason="results that another file has too")
_BEYOND = Omission(reason="rollouts beyond rollouts_per_example")


class _Tokens(BaseModel):
    input_tokens: Tokens = 0
    output_tokens: Tokens = 0


class _Rollout(BaseModel):
    """The fields of a saved rollout that an attempt needs."""

    example_id: StrictInt | str
    prompt: list[Any] | str | None = None
    completion: list[Any] | str | None = None
    reward: float
    metrics: dict[str, float | None] = Field(default={})
    error: JsonValue = None
    info: dict[str, Any] | str | None = None
    token_usage: _Tokens | None = None


def read(path: Path, score: str | None = None, section: Any = None) -> Iterator[TracedAttempt | Omission]:
    """Yield the attempts of a results file, or of all in a folder, in the order of their paths.

    `score` names a metric; by default the reward counts. Either must be from 0 to 1.

    Raises MissingInput: there is no such file, or a line of it is malformed.
    """
    files = sorted(path.rglob(_FILE)) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        raise MissingInput(f"There is no {_FILE} of verifiers at {path}: name the file or a folder with some.")
    order, seen = 0, set[bytes]()
    for file in files:
        if (digest := sha256(file).digest()) in seen:
            yield _COPIED
            continue
        seen.add(digest)
        environment, most = _metadata(file)
        rows = json_rows(
            file, _Rollout.model_validate, "a line is a saved rollout", line_bytes=_LINE_BYTES, most_bytes=_FILE_BYTES
        )
        tried = Counter[int | str]()
        for number, (_, rollout) in enumerate(rows, start=1):
            order += 1
            entry = _attempt(rollout, environment, score, order, f"Rollout {number} of {file}")
            tried[rollout.example_id] += isinstance(entry, TracedAttempt)
            # An evaluation that was stopped makes the rollouts of an example again.
            yield _BEYOND if most is not None and tried[rollout.example_id] > most else entry


def _metadata(file: Path) -> tuple[str, int | None]:
    """Return the name of the environment, that of the folder without metadata, and the number of rollouts."""
    metadata = file.with_name(_METADATA)
    if not metadata.is_file():
        return file.parent.name, None
    value = parse_json(read_text(metadata, 16 * MIB), str(metadata))
    name = value.get("env_id") if isinstance(value, dict) else None
    if not (isinstance(name, str) and name):
        raise MissingInput(f"{metadata}: env_id is missing: it is the name of the environment.")
    most = value.get("rollouts_per_example")
    return name, most if type(most) is int and most > 0 else None


def _attempt(
    rollout: _Rollout, environment: str, wanted: str | None, order: int, where: str
) -> TracedAttempt | Omission:
    if rollout.error:
        return _CRASHED
    value = rollout.reward if wanted in (None, "reward") else rollout.metrics.get(wanted or "")
    if value is None:
        return _UNSCORED
    name = "reward" if wanted is None else wanted
    if not 0 <= value <= 1:
        raise MissingInput(f"{where}: {name} is {value:g}: it must be from 0 to 1; name a metric with --score.")
    try:
        prompt = clean_messages(_messages(rollout.prompt, "user"))
        messages = clean_messages([*_messages(rollout.prompt, "user"), *_messages(rollout.completion, "assistant")])
        # The user's messages in the completion are observations of the environment.
        asked = "\n".join(content_text(message.content) for message in prompt if message.role == "user")
        used = rollout.token_usage or _Tokens()
        return TracedAttempt(
            task=CaseTask(id=f"{environment}/{rollout.example_id}", input=asked),
            attempt=CaseAttempt(
                score=value,
                messages=messages,
                usage=Usage(
                    calls=sum(message.role == "assistant" for message in messages),
                    prompt_tokens=used.input_tokens,
                    completion_tokens=used.output_tokens,
                ),
            ),
            started_ns=order,
            advice=advice_in(_info(rollout), f"{where}: info"),
            source=where,
        )
    except ValueError as error:
        fault = first_fault(error) if isinstance(error, ValidationError) else error
        raise MissingInput(f"{where}: {fault}.") from None


def _messages(value: list[Any] | str | None, role: str) -> list[Any]:
    """Return messages; a text is one message of this role."""
    return [{"role": role, "content": value}] if isinstance(value, str) else value or []


def _info(rollout: _Rollout) -> Any:
    """Return the rollout's own data, an object or its JSON."""
    try:
        return json_value(rollout.info) if isinstance(rollout.info, str) else rollout.info
    except (ValueError, RecursionError):
        return None

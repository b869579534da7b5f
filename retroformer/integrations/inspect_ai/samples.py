"""Turns the samples of Inspect's logs into attempts. A sample is a task, and each epoch of it an attempt.

Attempts are in the order of the logs' times, and within a log in the order of the epochs.
"""

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from inspect_ai.log import (
    EvalSample,
    EvalSpec,
    read_eval_log,
    read_eval_log_sample,
    read_eval_log_sample_summaries,
)
from inspect_ai.model import ChatMessage as InspectMessage
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, Content
from pydantic import ValidationError

from retroformer.agents.messages import clean_messages
from retroformer.cases.case import CaseAttempt, CaseTask
from retroformer.cases.traced import Omission, TracedAttempt, advice_in
from retroformer.errors import MissingInput
from retroformer.files.bounded import first_fault, most_decompressed, open_regular, size
from retroformer.files.text import is_storable
from retroformer.method.records import ChatMessage, Usage, content_text

_SUFFIXES = (".eval", ".json")
_LARGE_FIELDS = {"events", "events_data", "timelines"}
"""Fields of samples that can be large and hold nothing that an attempt needs."""
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Scores that Inspect writes as text: correct, partial, incorrect, no answer, and truth values."""
_CRASHED = Omission(reason="samples that ended in an error")
_INVALID = Omission(reason="samples that were invalidated")
_UNSCORED = Omission(reason="samples without a score")
_COPIED = Omission(reason="samples that another log has too")


def read(path: Path, score: str | None = None, section: Any = None) -> Iterator[TracedAttempt | Omission]:
    """Yield the attempts of a log, or of all logs in a folder.

    Raises MissingInput: a log or sample cannot be read, or it has several scores and `score` names none.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.name != "logs.json")
    else:
        files = [path] if path.is_file() else []
    if not files:
        raise MissingInput(f"There is no Inspect log (.eval or .json) at {path}: name a log or a folder of logs.")
    seen = set[Any]()
    for file in files:
        for spec, sample, where in _samples(file):
            # A retried evaluation, a converted log and a copy of one hold the same samples again.
            identity = sample.uuid or (spec.run_id, spec.task_id, sample.id, sample.epoch)
            yield _COPIED if identity in seen else _attempt(spec, sample, score, where)
            seen.add(identity)


def _samples(path: Path) -> Iterator[tuple[EvalSpec, EvalSample, str]]:
    """Yield the samples of a log, each with the log's own data and its place for errors. Raises MissingInput."""
    if path.suffix not in _SUFFIXES:
        raise MissingInput(f"{path} is not an Inspect log: the file name must end in .eval or .json.")
    open_regular(path).close()
    _refuse_bomb(path)
    with _refuse_damage(str(path)):
        spec = read_eval_log(path, header_only=True).eval
        summaries = read_eval_log_sample_summaries(path)
    for summary in sorted(summaries, key=lambda summary: (summary.epoch, str(summary.id))):
        where = f"Sample {summary.id!r}, epoch {summary.epoch} of {path}"
        with _refuse_damage(where):
            sample = read_eval_log_sample(
                path, summary.id, summary.epoch, resolve_attachments="core", exclude_fields=_LARGE_FIELDS
            )
        yield spec, sample, where


def _refuse_bomb(path: Path) -> None:
    """Raise MissingInput if a log, which is a zip archive, is far larger than its file or than it says."""
    most = most_decompressed(path.stat().st_size)
    if not zipfile.is_zipfile(path):
        return
    with _refuse_damage(str(path)), zipfile.ZipFile(path) as archive:
        is_bomb = sum(entry.file_size for entry in archive.infolist()) > most
        # The package reads an entry to its end, wherever it says that this is.
        damaged = None if is_bomb else archive.testzip()
    if is_bomb:
        raise MissingInput(f"{path} holds more than {size(most)}, the limit for a log of its size: get a fresh copy.")
    if damaged is not None:
        raise MissingInput(f"{path} is damaged (its entry {damaged!r}): get a fresh copy.")


@contextmanager
def _refuse_damage(where: str) -> Iterator[None]:
    """Turn whatever the package raises, its own errors and those of zip, zlib and JSON, into MissingInput."""
    try:
        yield
    except ValidationError as error:
        raise MissingInput(f"{where} is malformed: {first_fault(error)}.") from None
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise MissingInput(f"{where} is damaged ({what}): get a fresh copy.") from None


def _attempt(spec: EvalSpec, sample: EvalSample, wanted: str | None, where: str) -> TracedAttempt | Omission:
    if sample.error is not None:
        return _CRASHED
    if sample.invalidation is not None:
        return _INVALID
    score = _score_of(sample, wanted, where)
    if score is None:
        return _UNSCORED
    if not is_storable(name := f"{spec.task}/{sample.id}"):
        raise MissingInput(f"{where}: id holds NUL or half a character, which no database stores: correct it.")
    # An input of several messages holds what came before the question, too.
    asked = sample.input
    if not isinstance(asked, str):
        asked = "\n".join(content_text(said.content) for said in _messages(asked) if said.role == "user")
    messages = _messages(sample.messages)
    answered = any(message.role == "assistant" for message in messages)
    used = sample.model_usage.values()
    # The sample's solver knows best what it has read, and the evaluation's arguments least.
    places = {
        "metadata": sample.metadata,
        "store": sample.store,
        "eval.metadata": spec.metadata,
        "eval.task_args": spec.task_args,
    }
    created = datetime.fromisoformat(spec.created)
    try:
        usage = Usage(
            calls=sum(message.role == "assistant" for message in messages),
            prompt_tokens=sum(use.input_tokens for use in used),
            completion_tokens=sum(use.output_tokens for use in used),
        )
    except ValidationError as error:
        raise MissingInput(f"{where}: model_usage is malformed: {first_fault(error)}.") from None
    return TracedAttempt(
        task=CaseTask(id=name, input=asked),
        attempt=CaseAttempt(
            score=score,
            messages=messages if answered else None,
            output=None if answered else sample.output.completion,
            usage=usage,
        ),
        started_ns=int(created.timestamp() * 1e6) * 1000 + sample.epoch,
        advice=next(filter(None, (advice_in(values, f"{where}: {place}") for place, values in places.items())), ()),
        source=where,
    )


def _messages(messages: Sequence[InspectMessage]) -> tuple[ChatMessage, ...]:
    """Return a conversation as it is stored. The error of a tool is part of its result."""
    listed = list[dict[str, Any]]()
    for message in messages:
        fields = message.model_dump(mode="json", exclude={"tool_calls"})
        content = message.content if isinstance(message.content, str) else _parts(message.content)
        if isinstance(message, ChatMessageTool) and message.error is not None:
            content = "\n".join(text for text in (message.text, f"Error: {message.error.message}") if text)
        calls = (message.tool_calls or []) if isinstance(message, ChatMessageAssistant) else []
        named = [{"id": call.id, "function": {"name": call.function, "arguments": call.arguments}} for call in calls]
        listed.append({**fields, "content": content or (None if calls else ""), "tool_calls": named})
    return clean_messages(listed)


def _parts(content: Sequence[Content]) -> list[dict[str, Any]]:
    return [part.model_dump(mode="json", exclude={"internal"}) for part in content]


def _score_of(sample: EvalSample, wanted: str | None, where: str) -> float | None:
    """Return the score of a sample; None without one. Raises MissingInput if it is none from 0 to 1."""
    scores: dict[str, Any] = {}
    for name, score in (sample.scores or {}).items():
        if isinstance(score.value, Mapping):
            scores |= {f"{name}.{part}": value for part, value in score.value.items()}
        else:
            scores[name] = score.value
    if wanted is None and len(scores) > 1:
        raise MissingInput(
            f"{where} has the scores {', '.join(sorted(scores))}: choose one, as in `--score {min(scores)}`."
        )
    name = next(iter(scores), "") if wanted is None else wanted
    return _number(scores[name], f"{where}: scores[{name!r}].value") if scores.get(name) is not None else None


def _number(value: Any, place: str) -> float | None:
    """Return a score as a number from 0 to 1; None if the scorer could not give one, which Inspect writes as NaN."""
    if isinstance(value, str):
        text = value.strip()
        value = _LETTERS.get(text, _LETTERS.get(text.lower(), text))
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if math.isnan(number):
        return None
    if not 0 <= number <= 1:
        raise MissingInput(f"{place} is {repr(value)[:80]}: it must be a number from 0 to 1, or C, P, I or N.")
    return number

"""Turns the samples of Inspect's logs into attempts. A sample is a task, and each epoch of it an attempt.

Attempts are in the order of the logs' times, and within a log in the order of the epochs.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from inspect_ai.log import (
    EvalLog,
    EvalSample,
    EvalSpec,
    read_eval_log,
    read_eval_log_sample,
    read_eval_log_sample_summaries,
)
from pydantic import ValidationError

from retroformer.cases.case import CaseAttempt, CaseTask
from retroformer.errors import MissingInput
from retroformer.files.bounded import open_regular
from retroformer.files.text import is_storable
from retroformer.integrations.inspect_ai.chat import case_messages, text_of_content
from retroformer.integrations.inspect_ai.scores import score_of
from retroformer.records import Usage
from retroformer.traces.attempt import Skipped, TracedAttempt

_SUFFIXES = (".eval", ".json")
_UNREAD = {"events", "events_data", "timelines"}
"""Fields of samples that can be large and hold nothing that an attempt needs."""
_ADVICE = ("retroformer.advice", "advice")
_ENDED_IN_ERROR = Skipped(reason="samples that ended in an error")
_INVALIDATED = Skipped(reason="samples that were invalidated")
_NO_SCORE = Skipped(reason="samples without a score")


def read(path: Path, score: str | None = None) -> Iterator[TracedAttempt | Skipped]:
    """Yield the attempts of a log, or of all logs in a folder.

    Raises:
        MissingInput: a log or sample cannot be read, or it has several scores and `score` names none.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.name != "logs.json")
    else:
        files = [path] if path.is_file() else []
    if not files:
        raise MissingInput(f"There is no Inspect log (.eval or .json) at {path}: name a log or a folder of logs.")
    for file in files:
        log = _log(file)
        for sample in log.samples or ():
            where = f"Sample {sample.id!r}, epoch {sample.epoch} of {file}"
            yield _attempt(log.eval, sample, score, where)


def _log(path: Path) -> EvalLog:
    """Return a log with its samples. Raises MissingInput."""
    if path.suffix not in _SUFFIXES:
        raise MissingInput(f"{path} is not an Inspect log: the file name must end in .eval or .json.")
    open_regular(path).close()
    try:
        return read_eval_log(path, resolve_attachments="core", exclude_fields=_UNREAD)
    except ValidationError as error:
        _refuse_sample(path)
        raise MissingInput(f"{path} is not a valid Inspect log: {_fault(error)}.") from None
    except Exception as error:  # The package raises whatever zip, zlib, JSON and its own code do.
        _refuse_sample(path)
        raise MissingInput(f"{path} is damaged ({_one_line(error)}): get a fresh copy.") from None


def _refuse_sample(path: Path) -> None:
    """Raise MissingInput for the first sample that cannot be read; return if the log's fault lies elsewhere."""
    if path.suffix != ".eval":
        return
    try:
        summaries = read_eval_log_sample_summaries(path)
    except Exception:  # As above: the log as a whole is at fault.
        return
    for summary in summaries:
        where = f"Sample {summary.id!r}, epoch {summary.epoch} of {path}"
        try:
            read_eval_log_sample(path, summary.id, summary.epoch, exclude_fields=_UNREAD)
        except ValidationError as error:
            raise MissingInput(f"{where} is malformed: {_fault(error)}.") from None
        except Exception as error:  # As above.
            raise MissingInput(f"{where} is damaged ({_one_line(error)}): get a fresh copy.") from None


def _attempt(spec: EvalSpec, sample: EvalSample, wanted: str | None, where: str) -> TracedAttempt | Skipped:
    if sample.error is not None:
        return _ENDED_IN_ERROR
    if sample.invalidation is not None:
        return _INVALIDATED
    score = score_of(sample, wanted, where)
    if score is None:
        return _NO_SCORE
    if not is_storable(name := f"{spec.task}/{sample.id}"):
        raise MissingInput(f"{where}: id holds NUL or half a character, which no database stores: correct it.")
    # An input of several messages holds what came before the question, too.
    asked = sample.input if isinstance(sample.input, str) else _question(sample)
    messages = case_messages(sample.messages)
    answered = any(message.role == "assistant" for message in messages)
    used = sample.model_usage.values()
    created = datetime.fromisoformat(spec.created)
    try:
        usage = Usage(
            calls=sum(message.role == "assistant" for message in messages),
            prompt_tokens=sum(use.input_tokens for use in used),
            completion_tokens=sum(use.output_tokens for use in used),
        )
    except ValidationError as error:
        raise MissingInput(f"{where}: model_usage is malformed: {_fault(error)}.") from None
    return TracedAttempt(
        task=CaseTask(id=name, input=asked),
        attempt=CaseAttempt(
            score=score,
            messages=messages if answered else None,
            output=None if answered else sample.output.completion,
            usage=usage,
        ),
        started_ns=int(created.timestamp() * 1e6) * 1000 + sample.epoch,
        advice=_advice(spec, sample, where),
        source=where,
    )


def _advice(spec: EvalSpec, sample: EvalSample, where: str) -> tuple[str, ...]:
    """Return the advice that the sample's solver, the sample, or the whole evaluation had. Raises MissingInput."""
    places = {
        "metadata": sample.metadata,
        "store": sample.store,
        "eval.metadata": spec.metadata or {},
        "eval.task_args": spec.task_args,
    }
    for place, values in places.items():
        for name in _ADVICE:
            advice = values.get(name)
            if advice is None:
                continue
            texts = (advice,) if isinstance(advice, str) else tuple(advice) if isinstance(advice, list) else None
            if texts is None or not all(isinstance(text, str) for text in texts):
                shown = repr(advice)[:80]
                raise MissingInput(f"{where}: {place}[{name!r}] is {shown}: it must be a text or a list of texts.")
            return texts
    return ()


def _question(sample: EvalSample) -> str:
    assert not isinstance(sample.input, str)
    return "\n".join(text_of_content(message.content) for message in sample.input if message.role == "user")


def _fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}"


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]

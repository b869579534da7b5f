"""One call of an agent that is improved: where its task is, an attempt with a copy of it, and what cannot be one."""

import copy
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from retroformer.errors import ConfigError

_RECEIVERS = ("self", "cls")
"""Names of the first parameter of a method, which is not the task."""
_POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def task_parameter(agent: Callable[..., Any]) -> tuple[str, int | None]:
    """Return the parameter of an agent that is its task: the one called `task`, or else the first that is not `self`.

    It is a name, and a place among the positional arguments: None if it can only be passed by name, 0 if the signature
    cannot be read.
    """
    try:
        parameters = list(inspect.signature(agent).parameters.values())
    except (TypeError, ValueError):
        return "task", 0
    positional = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL_KINDS]
    if "task" in positional:
        return "task", positional.index("task")
    if any(parameter.name == "task" for parameter in parameters):
        return "task", None
    first = 1 if positional[:1] and positional[0] in _RECEIVERS else 0
    return positional[first] if first < len(positional) else "task", first


def prepare(
    agent: Callable[..., Any], parameter: tuple[str, int | None], arguments: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Any, Callable[[str], Any]]:
    """Return the task of a call as the caller passed it, and the function that attempts it with some advice.

    Every attempt gets a copy of the task, so none changes it, unless it cannot be copied. Raises TypeError if the call
    has no argument for the agent's `task_parameter`.
    """
    name, place = parameter
    if place is None or place >= len(arguments):
        if name not in named:
            raise TypeError(f"The agent was called without a task: pass it as the argument {name!r}.")
        task = named[name]
        return task, lambda advice: agent(*arguments, **{**named, "advice": advice, name: copy_of(task)})
    before, task, after = arguments[:place], arguments[place], arguments[place + 1 :]
    return task, lambda advice: agent(*before, copy_of(task), *after, **{**named, "advice": advice})


def copy_of(task: Any) -> Any:
    """Return a deep copy of a task, or the task itself if it cannot be copied."""
    try:
        return copy.deepcopy(task)
    except Exception:  # The task is of the user's own type: anything may go wrong.
        return task


def refuse_unusable(agent: Any, score: Any) -> None:
    """Check what is decorated, before any call. Raises ConfigError."""
    if not callable(agent):
        raise ConfigError(
            f"Cannot improve an object of type {type(agent).__name__}: decorate a function, and put @improve below "
            "@classmethod or @property."
        )
    name = getattr(agent, "__name__", "")
    if inspect.isgeneratorfunction(agent) or inspect.isasyncgenfunction(agent):
        raise ConfigError(
            f"The agent {name} is a generator, but only a complete answer can be rated: return it instead of yielding "
            "it."
        )
    if not _takes_advice(agent):
        raise ConfigError(
            f'The agent {name} has no parameter `advice`: add `advice=""`. A function that scores is passed by name, '
            "as `score=`."
        )
    if inspect.iscoroutinefunction(score):
        raise ConfigError("The score function is async: pass a plain function that returns the number.")


def _takes_advice(agent: Callable[..., Any]) -> bool:
    """Return False for a function that cannot be called with the argument `advice`, as far as its signature shows."""
    try:
        # A wrapper may take what the function that it wraps does not.
        parameters = inspect.signature(agent, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        or (parameter.name == "advice" and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY)
        for parameter in parameters
    )


def refuse_unfinished(returned: Any) -> None:
    """Check that an agent returned a complete answer, not an awaitable or iterator. Raises ConfigError."""
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise ConfigError("The agent returned an awaitable: make it an `async def` function, so that it is awaited.")
    if isinstance(returned, Iterator | AsyncIterator):
        # The score function would consume it, and the caller would get it empty.
        raise ConfigError(
            f"The agent returned a {type(returned).__name__}, which can be read only once: return a list."
        )

"""HotPotQA with Search, Lookup and Finish over a local docstore."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from retroformer.environments.extras import Extras, LeakCheck
from retroformer.environments.hotpotqa.hindsight import TitleHindsight
from retroformer.environments.hotpotqa.metrics import ReturnName
from retroformer.environments.hotpotqa.section import Hotpotqa
from retroformer.environments.hotpotqa.taskset import HotpotqaTaskset, taskset
from retroformer.protocols import ReturnOf
from retroformer.recorded import RecordedLogs
from retroformer.records import Tool

__all__ = ["HotpotqaTaskset", "Section", "extras", "taskset"]

Section = Hotpotqa


def _read_logs(path: Path, section: Any) -> RecordedLogs:
    from retroformer.environments.hotpotqa.logs.recorded import RATED_BY, recorded

    # Logs identify questions only by their text; the ids come from the data, if a folder of them is configured.
    ids = {} if section.data is None else taskset(section.model_copy(update={"split": "all"})).ids_by_question()
    return recorded(path, ids=ids, answer_return=RATED_BY)


def _leak_check(section: Any, seed: int) -> LeakCheck:
    from retroformer.environments.hotpotqa.leak import AnswerLeak

    return AnswerLeak(taskset(section, seed).answer)


def _return_of(name: ReturnName) -> Callable[[Any, int], ReturnOf]:
    def build(section: Any, seed: int) -> ReturnOf:
        from retroformer.environments.hotpotqa.returns import answer_return

        return answer_return(name, taskset(section, seed).answer)

    return build


def _tools(section: Any) -> tuple[Tool, ...]:
    """Return the actions as tools; with the gold paragraphs in the question, only the answer."""
    search = _tool("Search", "title", "Search the page with this title and show its first sentences.")
    lookup = _tool("Lookup", "keyword", "Show the next sentence with this keyword on the page that was found last.")
    finish = _tool("Finish", "answer", "End the task with a short answer: a name, a date, a number, yes or no.")
    return (finish,) if section.context else (search, lookup, finish)


def _tool(name: str, argument: str, description: str) -> Tool:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return Tool(name=name, description=description, parameters=parameters, form=f"{name}[{{{argument}}}]")


extras = Extras(
    tools=_tools,
    leak_check=_leak_check,
    hindsight=TitleHindsight,
    # The paper's F1 is the graded version of its success, exact match.
    returns={name: _return_of(name) for name in get_args(ReturnName)} | {"shaped": _return_of("f1")},
    read_logs=_read_logs,
    data_licence="HotPotQA: CC BY-SA 4.0.",
)

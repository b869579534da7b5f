"""Tests with agents built on other packages: each improves from failure to success, with few lines of integration."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collect.rate import rate_reflections
from retroformer.method.records import Key
from tests.support.endpoint import Endpoint
from tests.support.raw_server import RawServer, Request, Write, http
from tests.support.runs import facts, open_config
from tests.support.vault import advise, write_vault

GRAPH = '''
"""An agent of LangGraph with one tool; its model is a program, as no model is at hand."""

import re

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

CODES = {f"Open vault {number}.": str(4711 + number) for number in range(3)}


@tool
def enter(vault: str, code: str) -> str:
    """Enter a code."""
    return "The vault opens." if CODES[vault] == code else f"It stays shut. A note says {CODES[vault]}."


def model(state: MessagesState):
    said = [message.content for message in state["messages"]]
    if state["messages"][-1].type == "tool":
        return {"messages": [AIMessage("I am done.")]}
    code = (re.findall(r"Enter (\\d+)", said[0]) or ["0000"])[0]
    call = {"name": "enter", "args": {"vault": said[1], "code": code}, "id": "1"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def next_node(state: MessagesState):
    return "tools" if state["messages"][-1].tool_calls else END


graph = StateGraph(MessagesState)
graph.add_node("model", model)
graph.add_node("tools", ToolNode([enter]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", next_node)
graph.add_edge("tools", "model")
agent = graph.compile()
'''

GRAPH_INTEGRATION = """
def attempt(task, advice=""):
    done = agent.invoke({"messages": [("system", f"You open vaults. {advice}"), ("user", task["input"])]})
    return {"messages": done["messages"], "score": "opens" in done["messages"][-2].content}
"""

CLIENT = '''
"""An agent on the plain client of OpenAI that calls a tool until the model answers in words."""

import json
import os

from openai import OpenAI

TOOLS = [{"type": "function", "function": {"name": "enter", "parameters": {"type": "object", "properties": {}}}}]


def play(system, task):
    client = OpenAI(base_url=os.environ["VAULT_MODEL"], api_key="none")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": task["input"]}]
    while True:
        said = client.chat.completions.create(model="small", messages=messages, tools=TOOLS).choices[0].message
        messages.append(said)
        if not said.tool_calls:
            return messages
        for call in said.tool_calls:
            opened = json.loads(call.function.arguments)["code"] == task["code"]
            seen = "The vault opens." if opened else f"It stays shut. A note says {task['code']}."
            messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})
'''

CLIENT_INTEGRATION = """
def attempt(task, advice=""):
    messages = play(f"You open vaults. {advice}", task)
    return {"messages": messages, "score": "opens" in messages[-2]["content"]}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("mine", None)


def rated(folder: Path, source: str) -> str:
    """Collect with the function `attempt` of this module; return the summary."""
    (folder / "mine.py").write_text(source)
    with Endpoint(advise) as reflector:
        path = write_vault(folder, {"python": "mine:attempt"}, reflector.url)
        return asyncio.run(rate_reflections(open_config(path)))


def lines_of(integration: str) -> int:
    return len(integration.strip().splitlines())


def test_an_agent_of_langgraph_is_improved_with_three_lines(tmp_path: Path) -> None:
    assert lines_of(GRAPH_INTEGRATION) <= 5
    assert "6 rated: 6 positive" in rated(tmp_path, GRAPH + GRAPH_INTEGRATION)
    failure = facts(open_config(tmp_path / "vaults.yaml")).trajectories[Key(arm="collect", task_id="train-vault-2")]
    tried, done = failure.steps
    assert tried.action == 'enter({"vault": "Open vault 2.", "code": "0000"})'
    assert tried.observation == "It stays shut. A note says 4713."
    assert done.action == "I am done."
    assert failure.messages is not None
    assert [message.role for message in failure.messages[-3:]] == ["assistant", "tool", "assistant"]
    assert failure.messages[-3].tool_calls[0].function.name == "enter"
    assert failure.messages[-2].content == tried.observation


def test_an_agent_on_the_client_of_openai_with_tools_is_improved_with_three_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Request, write: Write) -> None:
        messages = json.loads(request.body)["messages"]
        if messages[-1]["role"] == "tool":
            message = {"role": "assistant", "content": "I am done."}
        else:
            code = messages[0]["content"].partition("Enter ")[2].partition(".")[0] or "0000"
            call = {"name": "enter", "arguments": json.dumps({"code": code})}
            message = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "small", "choices": [choice]}
        write(http("200 OK", json.dumps(body).encode()))

    assert lines_of(CLIENT_INTEGRATION) <= 5
    with RawServer(answer) as model:
        monkeypatch.setenv("VAULT_MODEL", model.url)
        assert "6 rated: 6 positive" in rated(tmp_path, CLIENT + CLIENT_INTEGRATION)
    failure = facts(open_config(tmp_path / "vaults.yaml")).trajectories[Key(arm="collect", task_id="train-vault-0")]
    assert [step.action for step in failure.steps] == ['enter({"code": "0000"})', "I am done."]

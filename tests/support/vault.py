"""Agents that open a vault if their advice holds its code, in every form in which an agent can be given.

A failed attempt ends with a note that shows the code, so a reflector that reads the attempt can advise it.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.support.endpoint import Body, prompt_of

FUNCTION = '''
"""An agent as a Python function."""

import asyncio
import re


def open_vault(task, advice=""):
    code = re.findall(r"\\d+", advice)[:1] or ["0000"]
    opened = code[0] == task["code"]
    seen = "The vault opens." if opened else f"It stays shut. A note says {task['code']}."
    return {"steps": [{"thought": "I try.", "action": f"enter {code[0]}", "observation": seen}], "score": float(opened)}


async def open_vault_later(task, advice=""):
    await asyncio.sleep(0)
    return open_vault(task, advice)


def answer(task, advice=""):
    return "".join(re.findall(r"\\d+", advice)) or f"unknown; the note says {task['code']}"


def is_right(task, output):
    return output == task["code"]
'''

PROGRAM = """
import json, sys
from vault import open_vault
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps(open_vault(asked["task"], asked["advice"])), flush=True)
"""

NODE = """
const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const { task, advice } = JSON.parse(line);
  const code = (advice.match(/\\d+/) || ["0000"])[0];
  const observation = code === task.code ? "The vault opens." : `It stays shut. A note says ${task.code}.`;
  const messages = [
    { role: "user", content: task.input },
    { role: "assistant", content: null, tool_calls: [{ id: "1", function: { name: "enter", arguments: code } }] },
    { role: "tool", tool_call_id: "1", content: observation },
  ];
  console.log(JSON.stringify({ messages, score: code === task.code ? 1 : 0 }));
});
"""


def write_vault(folder: Path, agent: dict[str, Any], url: str, tasks: int = 3, **environment: Any) -> Path:
    """Write the agents, their tasks and a config with this agent and its reflector at `url`; return the config."""
    (folder / "vault.py").write_text(FUNCTION)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "agent.js").write_text(NODE)
    rows = [
        {"id": f"vault-{number}", "split": split, "input": f"Open vault {number}.", "code": str(4711 + number)}
        for split in ("train", "held_out")
        for number in range(tasks)
    ]
    rows = [row | {"id": f"{row['split']}-{row['id']}"} for row in rows]
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = {
        "run": "vaults",
        "environment": {"name": "agent", "data": "tasks.jsonl", "agent": agent, **environment},
        "loop": {"trials": 2, "concurrency": 2, "retries": 0},
        "reflector": {"endpoint": {"base_url": url, "model": "big"}},
        "collect": {"candidates": 2},
        "eval": {
            "split": "held_out",
            "arms": {
                "no reflection": {"kind": "none"},
                "reflector": {"kind": "model", "model": "big"},
                "placebo": {"kind": "placebo", "of": "reflector"},
            },
        },
    }
    path = folder / "vaults.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def advise(body: Body) -> str:
    """Return the code that the attempt in the prompt has shown."""
    shown = re.findall(r"note says (\d+)", prompt_of(body))
    return f"Enter {shown[-1]}." if shown else "Look around."

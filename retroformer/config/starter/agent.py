"""A toy agent that answers customers. Put your own agent in its place."""

import re

TOOLS = {
    "apologise": "sorry",
    "refund": "refund money back",
    "replace": "replace another new",
    "repair": "repair fix mend",
    "explain": "explain show how",
}
"""Words that describe each tool."""


def attempt(task: dict[str, str], advice: str = "") -> dict[str, object]:
    """Use the tool whose description shares most words with the advice; without advice, apologise.

    task: a line of tasks.jsonl. The result holds what the agent did, and a score from 0 to 1.
    """
    words = re.findall("[a-z]+", advice.lower())
    tool = max(TOOLS, key=lambda tool: sum(word in words for word in TOOLS[tool].split()))
    solved = tool == task["wanted"]
    seen = "The customer is happy." if solved else f"The customer is still angry: {task['reply']}"
    return {"steps": [{"action": tool, "observation": seen}], "score": float(solved)}

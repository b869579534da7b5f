"""Separates the answer of a reasoning model from its thinking, which is neither advice nor an action."""

import re

_BLOCK = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)|\[THINK\].*?(?:\[/THINK\]|\Z)", re.DOTALL)
"""Thinking between its marks; without an end if the model was cut off."""
_BEGUN_BY_TEMPLATE = re.compile(r"\A.*(?:</(?:think|thinking|reasoning)>|\[/THINK\])[ \t]*(?:\n|\Z)", re.DOTALL)
"""Thinking whose opening mark is the end of the prompt, as the chat template wrote it; its closing mark ends a line."""


def without_thinking(text: str) -> str:
    """Return the text without the thinking in it; all of it is thinking if it was cut off before an answer.

    A text without marks is returned unchanged.
    """
    answer = _BEGUN_BY_TEMPLATE.sub("", _BLOCK.sub("", text))
    return text if answer == text else answer.lstrip()

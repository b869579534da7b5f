"""Separates the answer of a reasoning model from its thinking, which is neither advice nor an action."""

import re

_TAGS = r"think|thinking|reasoning|antthinking|seed:think"
_OTHERS = (
    (r"\[THINK\]", r"\[/THINK\]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Command A
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),  # Sky-T1
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),  # Apertus
)
"""Marks of thinking that are not tags of one name: opening and closing."""

_BLOCK = re.compile(
    "|".join(
        [rf"<(?P<tag>{_TAGS})>.*?(?:</(?P=tag)>|\Z)", *(rf"{begin}.*?(?:{end}|\Z)" for begin, end in _OTHERS)],
    ),
    re.DOTALL | re.IGNORECASE,
)
"""Thinking between its marks; without an end if the model was cut off."""
_BEGUN_BY_TEMPLATE = re.compile(
    rf"\A.*(?:</(?:{_TAGS})>|{'|'.join(end for _, end in _OTHERS)})[ \t]*(?:\n|\Z)", re.DOTALL | re.IGNORECASE
)
"""Thinking whose opening mark is the end of the prompt, as the chat template wrote it; its closing mark ends a line."""
_ANALYSIS = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>analysis\b.*?(?:<\|(?:end|return|call)\|>|(?=<\|(?:start|channel)\|>)|\Z)"
    r"|\Aanalysis(?=[A-Z]).*?(?:assistantfinal|\Z)",
    re.DOTALL,
)
"""Thinking in the format of gpt-oss; the second form is what is left where special tokens are skipped."""
_CHANNEL = re.compile(
    r"(?:<\|start\|>assistant)?(?:<\|channel\|>(?:final|commentary)\b[^<]*)(?:<\|constrain\|>\w*)?<\|message\|>"
    r"|<\|(?:end|return|call)\|>"
)
"""Marks of gpt-oss around what is not thinking."""


def without_thinking(text: str) -> str:
    """Return the text without the thinking in it; all of it is thinking if it was cut off before an answer.

    A text without marks is returned unchanged.
    """
    if not any(mark in text for mark in "<[◁") and not text.startswith("analysis"):
        return text  # Millions of texts are stored, and hardly any has a mark.
    answer = _BEGUN_BY_TEMPLATE.sub("", _BLOCK.sub("", _without_analysis(text)))
    return text if answer == text else answer.lstrip()


def _without_analysis(text: str) -> str:
    answer = _ANALYSIS.sub("", text)
    return _CHANNEL.sub("", answer) if "<|channel|>" in text else answer

"""Model of a scripted endpoint that answers three families of reasoning-gym, each with one habitual mistake.

It makes the mistake unless the advice in its prompt names the method that avoids it. Some tasks are solved in spite of
the mistake, such as a sum without a minus. As a reflector it writes the advice of `ADVICE`.

`python -m tests.support.reasoner` runs it in a process of its own and prints its address.
"""

import re
import sys
import threading

from tests.support.endpoint import Body, Endpoint, prompt_of

ADVICE = "Keep a running total: add after a plus, subtract after a minus."
_SUM = re.compile(r"arithmetic problem: ([-+0-9 ]+) =")
_COUNT = re.compile(r'How many times does the letter "(.)" appear in the text: "([^"]*)"')
_WORD = re.compile(r"Spell this word backward \(example: sun -> nus\): (\S+)")
_LONGEST_WORD = 6
"""Number of letters up to which it spells a word backward without advice."""


def reason(body: Body) -> str:
    """Answer the last question of a prompt, or advise if the prompt asks for advice."""
    prompt = prompt_of(body)
    if prompt.rstrip().endswith("in one sentence:"):
        return ADVICE
    asked = prompt.rpartition("Advice from earlier attempts at this question:")[2] if "- " in prompt else prompt
    advice = asked.lower() if "Advice from earlier attempts" in prompt else ""
    return f"I think.\n<answer>{_answer(prompt, advice)}</answer>"


def _answer(prompt: str, advice: str) -> str:
    questions = [(match.start(), match) for form in (_SUM, _COUNT, _WORD) for match in form.finditer(prompt)]
    if not questions:
        return "nothing"
    match = max(questions, key=lambda question: question[0])[1]
    if match.re is _SUM:
        return _sum(match[1], subtracts="subtract" in advice)
    if match.re is _COUNT:
        return _count(match[1], match[2], every="every" in advice)
    return _backward(match[1], letter_by_letter="letters one by one" in advice)


def _sum(terms: str, *, subtracts: bool) -> str:
    numbers = [int(sign + digits) for sign, digits in re.findall(r"([-+]?) ?([0-9]+)", terms)]
    return str(sum(numbers if subtracts else map(abs, numbers)))


def _count(letter: str, text: str, *, every: bool) -> str:
    return str(sum(word.lower().count(letter) if every else letter in word.lower() for word in text.split()))


def _backward(word: str, *, letter_by_letter: bool) -> str:
    spelt = word[::-1]
    return spelt if letter_by_letter or len(word) <= _LONGEST_WORD else spelt[:2] + spelt[3:]


if __name__ == "__main__":
    with Endpoint(reason) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        threading.Event().wait()

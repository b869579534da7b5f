"""Scripted shopping, with and without advice: data from which an actor learns to shop and to read advice.

The shopper is naive on purpose: it searches for the first words of the request, opens the first product, chooses only
the first option that the request names, and buys. Advice may say what to search for, which product to open and what to
choose. The shopper obeys it, right or wrong, as far as the page allows.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from retroformer.agents.arms.baselines import PHRASES, seeded
from retroformer.agents.reflector import WrittenReflector
from retroformer.environments.extras import Demonstration
from retroformer.environments.webshop import compact
from retroformer.environments.webshop.environment import WebshopEnvironment
from retroformer.errors import MissingInput
from retroformer.method.prompts import Render
from retroformer.method.records import Memory, Step, Task, Trajectory

SEARCH_WORDS = 6
"""Number of words of the request that the shopper searches for without advice."""
_PRICE = re.compile(r",? and price lower than.*")
_NAMED_VALUE = re.compile(r"(?:with|and) (?:(?!with |and )[\w ])+: (.+?)(?=, and [\w ]+: |$)")
_WORD = re.compile(r"[\w'&.-]*\w")
_FUNCTION_WORDS = frozenset(("a", "an", "and", "for", "i", "in", "my", "of", "or", "the", "to", "with"))
_BACK = "click[Back to Search]"
"""Action after a search without results; the next search is the shopper's own."""
SEARCH_SENTENCES = (
    "Search for {words}.",
    "Search {words}.",
    "Use the search words {words}.",
    "Next time I will search for {words}.",
    "Look for {words}.",
)
CHOICE_SENTENCES = ("Choose {values}.", "Select {values}.", "Then choose {values}.", "The options are {values}.")
OPEN_SENTENCES = ("Open product {number}.", "Take product {number}.", "Buy product {number}.")

_PLAIN = re.compile(
    r"^(?:Search for (?P<words>.+?)\.(?: |$))?(?:Open product (?P<number>\d)\.(?: |$))?(?:Choose (?P<values>.+)\.)?$"
)


class ShoppingAdvice(NamedTuple):
    """Meaning of a piece of advice, and the meaning of none."""

    words: str = ""
    values: tuple[str, ...] = ()
    number: int = 0

    def say(self, random: Random | None = None) -> str:
        """Return the advice in the plain sentences, or in drawn ones."""

        def sentence(forms: Sequence[str], **gaps: object) -> str:
            return (random.choice(forms) if random else forms[0]).format(**gaps)

        said = [sentence(SEARCH_SENTENCES, words=self.words)] if self.words else []
        said += [sentence(OPEN_SENTENCES, number=self.number)] if self.number else []
        said += [sentence(CHOICE_SENTENCES, values=" and ".join(self.values))] if self.values else []
        return " ".join(said)


def read_advice(text: str) -> ShoppingAdvice:
    """Return the meaning of plain sentences; none of what is not said in them."""
    said = _PLAIN.search(text)
    if said is None:
        return ShoppingAdvice()
    values = tuple(said["values"].split(" and ")) if said["values"] else ()
    return ShoppingAdvice(said["words"] or "", values, int(said["number"] or 0))


class ShoppingRequest(NamedTuple):
    """Request as a program reads it."""

    words: tuple[str, ...]
    """Words for a search: without names and values of options, price and function words."""
    values: tuple[str, ...]
    """Values of the options that it names."""


def read_request(text: str) -> ShoppingRequest:
    text = _PRICE.sub("", text)
    values = tuple(match[1] for match in _NAMED_VALUE.finditer(text))
    words = _WORD.findall(_NAMED_VALUE.sub("", text))
    return ShoppingRequest(tuple(word for word in words if word.lower() not in _FUNCTION_WORDS), values)


def rule_advice(request: ShoppingRequest) -> ShoppingAdvice:
    """Return the words and the values of the whole request."""
    return ShoppingAdvice(" ".join(request.words), request.values)


def oracle_advice(walkthrough: Sequence[str]) -> ShoppingAdvice:
    """Return the search that shows the wanted product first, and its wanted options."""
    search, _, *options, _ = walkthrough
    return ShoppingAdvice(search[len("search[") : -1], tuple(option[len("click[") : -1] for option in options))


def mixed_advice(request: ShoppingRequest, random: Random) -> ShoppingAdvice:
    """Return a few words of the request, a product or some of the options, mostly of little use."""
    most = min(len(request.words), 10)
    drawn = random.sample(range(len(request.words)), random.randint(min(2, most), most))
    words = " ".join(request.words[index] for index in sorted(drawn)) if random.random() < 0.85 else ""
    values = tuple(value for value in request.values if random.random() < 0.5)
    return ShoppingAdvice(words, values, 0 if words and random.random() < 0.8 else random.randint(1, 3))


def writer(
    rule: str, render: Render, advice: Callable[[Trajectory, ShoppingRequest, Random], ShoppingAdvice]
) -> WrittenReflector:
    """Return a reflector that is a program: advice drawn by seed and task."""

    def write(failure: Trajectory, memory: Memory, seed: int) -> str:
        request = read_request(compact.request_of(failure.opening))
        return advice(failure, request, seeded(failure.task, seed)).say()

    return WrittenReflector(rule, render, write)


def next_action(opening: str, steps: Sequence[Step], choices: Sequence[str], advice: ShoppingAdvice) -> str:
    """Return the shopper's next action on the site."""
    request = compact.request_of(opening)
    if not steps or steps[-1].action == _BACK:
        own = _WORD.findall(_PRICE.sub("", request).partition(" with ")[0])[:SEARCH_WORDS]
        return compact.on_site(f"search {' '.join(own) if steps or not advice.words else advice.words}", ())
    if shown := compact.products(steps[-1].observation):
        return compact.on_site(f"open {min(advice.number or 1, len(shown))}", shown)
    page = next((step.observation for step in steps if "[Buy Now]" in step.observation), "")
    if not page:
        return _BACK
    done = {step.action for step in steps}
    wanted = [f"click[{value}]" for value in advice.values] or _named(request, page)
    return next((click for click in wanted if click in choices and click not in done), "click[Buy Now]")


def _named(request: str, page: str) -> list[str]:
    """Return a click on the first option of the page, in page order, that the request names."""
    for _, values in compact.OPTION.findall(page):
        named = [value for value in values[1:-1].split("][") if re.search(rf"(?<!\w){re.escape(value)}(?!\w)", request)]
        if named:
            return [f"click[{max(named, key=len)}]"]
    return []


def demonstrations(
    environment: WebshopEnvironment,
    tasks: Sequence[Task],
    walkthrough: Callable[[Task], Sequence[str]],
    count: int,
    actions: int,
    seed: int,
) -> Iterator[Demonstration]:
    """Yield `count` attempts of at most `actions` actions at tasks drawn at random. Raises MissingInput."""
    if len(tasks) < 2:
        raise MissingInput(
            f"Split {tasks[0].split!r} has a single goal, and demonstrations need two, since some advice is about "
            "another product: set environment.split or environment.goals to another."
        )
    random = Random(f"demonstrations {seed}")
    for _ in range(count):
        task, other = random.sample(tasks, 2)
        seen = environment.reset(task)
        opening, steps, pieces = seen.observation, list[Step](), list[tuple[str, bool]]()
        kind, advice = _drawn(read_request(compact.request_of(opening)), walkthrough(task), walkthrough(other), random)
        said = advice.say(random) or (random.choice(PHRASES) if random.random() < 0.3 else "")
        text = compact.attempt(opening, (), (said,))
        while not seen.over and len(steps) < actions:
            pieces.append((f"{text}>", False))
            action = next_action(opening, steps, seen.choices, advice)
            shown = compact.products(steps[-1].observation) if steps else ()
            pieces.append((f" {compact.command(action, shown)}\n", True))
            seen = environment.step(action)
            steps.append(Step(action=action, observation=seen.observation))
            text = f"{compact.observation(seen.observation)}\n"
        yield Demonstration(task.id, kind, seen.success, tuple(pieces))


def _drawn(
    request: ShoppingRequest, solution: Sequence[str], other: Sequence[str], random: Random
) -> tuple[str, ShoppingAdvice]:
    """Return a kind of advice and advice of it: right, partly right, about another product, or none."""
    kind = random.choices(("none", "oracle", "mixed", "rule", "other"), (0.2, 0.25, 0.3, 0.15, 0.1))[0]
    if kind == "mixed":
        return kind, mixed_advice(request, random)
    if kind == "oracle":
        advice = oracle_advice(solution)
        return kind, advice if random.random() < 0.6 else random.choice(
            (ShoppingAdvice(advice.words), ShoppingAdvice("", advice.values))
        )
    advice_of = {"rule": rule_advice(request), "other": oracle_advice(other)}
    return kind, advice_of.get(kind, ShoppingAdvice())

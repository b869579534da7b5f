"""Tests of the shopping actor's text, of the scripted shopper, and of the advice that it reads."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.endpoint.model import Completion
from retroformer.environments.registry import extras
from retroformer.environments.webshop import WebshopTaskset, compact
from retroformer.environments.webshop.actors import ShoppingActor
from retroformer.environments.webshop.environment import Webshop
from retroformer.environments.webshop.scripted_play import (
    ShoppingAdvice,
    ShoppingRequest,
    next_action,
    oracle_advice,
    read_advice,
    read_request,
    rule_advice,
)
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.protocols import Scene
from retroformer.method.records import Memory, Step, Task, Usage
from tests.support.data import needs_data
from tests.support.runs import ROOT
from tests.support.webshop import SHARED, index_of_the_data, make, write_shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WebshopTaskset:
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    return make(write_shop(tmp_path / "data"))


@pytest.fixture
def real_shop(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> WebshopTaskset:
    monkeypatch.setenv("RETROFORMER_CACHE", str(index_of_the_data(tmp_path_factory)))
    return make(SHARED, split="products_validation")


class OneLine:
    """Model that always writes the same line, and records its prompt."""

    def __init__(self, line: str) -> None:
        self.line, self.prompt = line, ""

    async def complete(
        self, prompt: str, *, temperature: float, max_new_tokens: int, stop: Sequence[str] = (), seed: int | None = None
    ) -> Completion:
        self.prompt = prompt
        return Completion(text=self.line, usage=Usage())


def shopped(shop: WebshopTaskset, idx: int, advice: ShoppingAdvice) -> tuple[str, list[Step], float]:
    """Return the opening, the steps and the reward of the scripted shopper."""
    environment, task = shop.environment(), shop.tasks()[idx]
    seen = environment.reset(task)
    opening, steps = seen.observation, list[Step]()
    while not seen.over:
        action = next_action(opening, steps, seen.choices, advice)
        seen = environment.step(action)
        steps.append(Step(action=action, observation=seen.observation))
    return opening, steps, seen.reward


def test_an_attempt_is_short_text_from_which_the_site_s_actions_can_be_read_back(shop: WebshopTaskset) -> None:
    opening, steps, reward = shopped(shop, 0, ShoppingAdvice("reading lamp", ("sky blue", "9 inch")))
    text = compact.attempt(opening, steps, ("Search for\nreading lamp.",))
    assert text == (
        f"Request: {compact.request_of(opening)}\n"
        "Advice: Search for reading lamp.\n"
        "> search reading lamp\n"
        "1: Reading Lamp, $10.0\n2: Desk Lamp with Clamp, $1019.5\n3: Oak Lamp, $25.0\n"
        '> open 1\ncolor: sky blue, red | white; size: 5", 9 inch\n'
        "> choose sky blue\nok\n> choose 9 inch\nok\n> buy\n"
        f"score {reward:.2f}\n"
    )
    shown = compact.products(steps[0].observation)
    assert [compact.on_site(compact.command(step.action, shown), shown) for step in steps] == [
        step.action for step in steps
    ]


@pytest.mark.parametrize(
    ("line", "action"),
    [
        (" search oak #2 lamp?", "search[oak 2 lamp]"),
        (" open 1", "click[B01]"),
        (" open 3", "click[3]"),
        (" buy", "click[Buy Now]"),
        (" choose x-large", "click[x-large]"),
        ("", "click[]"),
    ],
)
def test_one_line_of_the_model_becomes_one_action(line: str, action: str) -> None:
    page = "\n[Back to Search] \nPage 1 \n[Next >] \n[B01] \nA lamp \n$5.0 \n[B02] \nA desk \n$6.0 "
    opening, step = "\nInstruction:  \nFind me lamps \n[Search] ", Step(action="search[lamps]", observation=page)
    model = OneLine(line)
    scene = Scene(
        task=Task(id="0", environment="webshop", split="all"), opening=opening, steps=(step,), memory=Memory(), seed=1
    )
    assert asyncio.run(ShoppingActor(model).act(scene)).action == action
    assert model.prompt == "Request: lamps\n> search lamps\n1: A lamp, $5.0\n2: A desk, $6.0\n>"


def test_a_request_is_read_with_its_words_and_options() -> None:
    options = "color: sea, blue, and size: 9.5 wide, and price lower than 40.00 dollars"
    text = f"slim fit men's shirts with short sleeve with {options}"
    request = read_request(text)
    assert request == ShoppingRequest(("slim", "fit", "men's", "shirts", "short", "sleeve"), ("sea, blue", "9.5 wide"))
    assert rule_advice(request).say() == (
        "Search for slim fit men's shirts short sleeve. Choose sea, blue and 9.5 wide."
    )


@pytest.mark.parametrize(
    "advice",
    [
        ShoppingAdvice("men's boots 9.5"),
        ShoppingAdvice("", ("red",), 2),
        ShoppingAdvice("a b", ("red", "9.5 wide"), 3),
        ShoppingAdvice(),
    ],
)
def test_the_program_reads_what_the_rules_write(advice: ShoppingAdvice) -> None:
    assert read_advice(advice.say()) == advice


def test_a_search_without_results_is_followed_by_the_shopper_s_own(shop: WebshopTaskset) -> None:
    _, steps, _ = shopped(shop, 0, ShoppingAdvice("zebra"))
    assert [step.action for step in steps][:2] == ["search[zebra]", "click[Back to Search]"]
    assert steps[2].action.startswith("search[")
    assert steps[-1].action == "click[Buy Now]"


@needs_data("webshop")
def test_the_oracle_s_advice_buys_nearly_every_wanted_product_and_a_retry_without_advice_few(
    real_shop: WebshopTaskset,
) -> None:
    tasks = real_shop.tasks()
    alone = [shopped(real_shop, idx, ShoppingAdvice())[2] for idx in range(len(tasks))]
    advised = [shopped(real_shop, idx, oracle_advice(real_shop.walkthrough(task)))[2] for idx, task in enumerate(tasks)]
    assert len(tasks) == 104
    assert sum(alone) / len(tasks) < 0.5
    assert sum(advised) / len(tasks) > 0.95


@needs_data("webshop")
def test_demonstrations_are_what_the_actor_is_prompted_with(real_shop: WebshopTaskset) -> None:
    section = load(ROOT / "configs" / "actor" / "shopping.yaml").environment.model_copy(update={"data": SHARED})
    assert isinstance(section, Webshop)
    played = extras(section).demonstrations
    assert played is not None
    demonstrations = list(played(section, 40, 20, 0, "either"))
    assert {each.kind for each in demonstrations} == {"none", "oracle", "mixed", "rule", "other"}
    assert max(len(each.text) for each in demonstrations) < 1500
    for each in demonstrations:
        own = "".join(text for text, is_own in each.pieces if is_own)
        assert own.startswith(" search ")
        assert own.endswith(" buy\n")
        assert each.text.startswith("Request: ")
        assert each.text.count("\n> ") == own.count("\n")


def test_demonstrations_that_cannot_be_played_are_refused(shop: WebshopTaskset, tmp_path: Path) -> None:
    section = Webshop(data=tmp_path / "data", split="all", goals="human")
    played = extras(section).demonstrations
    assert played is not None
    with pytest.raises(MissingInput, match="Split 'all' has a single goal, and demonstrations need two"):
        next(played(section, 1, 20, 0, "either"))
    with pytest.raises(ConfigError, match="obeys advice in any words: leave train"):
        played(section, 1, 20, 0, "unseen")

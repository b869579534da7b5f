"""Tests of eq. 7 against values worked by hand, and of every recorded reward with all its parts."""

import pytest

from retroformer.environments.webshop.data import Product
from retroformer.environments.webshop.environment import (
    PurchaseReward,
    TypeMatch,
    normalized,
    purchase,
    reward,
    type_match,
)
from retroformer.environments.webshop.goals import ShoppingGoal
from retroformer.environments.webshop.shop import Shop
from tests.support.webshop import SHARED, index_of_the_data, recorded

LAMP = Product(
    asin="B1",
    title="Reading Lamp",
    description="Easy to install.",
    bullets=("It is made of Oak.",),
    pricing=(10.0,),
    query="lamps",
    category="garden",
    product_category="Home \u203a Lighting \u203a Lamps",
    options=(("color", ("black",)), ("size", ("9 inch", "5 inch"))),
    attributes=("long lasting", "heavy duty"),
)
GOAL = ShoppingGoal("B1", "Find me a lamp", ("lasting long", "oak"), (("color", "black"), ("size", "9 inch")), 20.0)
SAME = TypeMatch(query_match=True, category_match=True, title_score=1.0)


def bought(
    *, price: float = 10.0, match: TypeMatch = SAME, goal: ShoppingGoal = GOAL, **options: str
) -> PurchaseReward:
    return reward(LAMP, price, options, goal, match)


def test_a_perfect_purchase_is_worth_one() -> None:
    reward = bought(color="black", size="9 inch")
    assert (reward.attributes_found, reward.options_found, reward.price_met, reward.total) == (2, 2, True, 1.0)


def test_each_missing_part_reduces_the_reward_by_its_share() -> None:
    assert bought(color="black").total == 4 / 5
    assert bought(color="black", size="7 feet").options_found == 1
    assert bought(price=20.01).total == 2 / 5
    assert bought(goal=GOAL._replace(attributes=("washable",))).total == 1 / 4
    assert bought(goal=GOAL._replace(options=())).options == 0


def test_the_wrong_type_scales_the_whole() -> None:
    types = [SAME._replace(title_score=score) for score in (0.1, 0.09, 0.0)]
    assert [match.reward for match in types] == [1.0, 0.1, 0.0]
    stranger = TypeMatch(query_match=False, category_match=False, title_score=0.2)
    assert [stranger.reward, stranger._replace(title_score=0.21).reward] == [0.5, 1.0]
    assert bought(match=stranger, color="black", size="9 inch").total == 0.5


def test_a_type_is_compared_by_search_categories_and_the_titles_nouns() -> None:
    table = LAMP._replace(query="tables", product_category="Home \u203a  Lighting\u203aTables")
    match = type_match(table, ("oak", "lamp"), LAMP, ("oak", "oak", "reading", "lamp"))
    assert match == TypeMatch(query_match=False, category_match=True, title_score=2 / 4)
    assert type_match(table, ("oak",), LAMP, ()).title_score == 0.2


def test_a_color_in_a_value_replaces_it_but_a_pair_must_have_it_as_a_member() -> None:
    assert normalized("1877black") == "black"
    assert normalized(("color", "black")) == "black"
    assert normalized(("color", "1877black")) == ("color", "1877black")
    goal = GOAL._replace(options=(("color", "1877black"),))
    assert bought(goal=goal, color="1877black").options_found == 0
    assert bought(goal=goal._replace(options=("1877black",)), color="1877black").options_found == 1


@pytest.mark.parametrize("wanted", ["easy to install", "reading lamp", "made of oak", "heavy-duty"])
def test_an_attribute_counts_where_any_text_of_the_product_has_it(wanted: str) -> None:
    assert bought(goal=GOAL._replace(attributes=(wanted,))).attributes_found == 1


def test_every_recorded_reward_is_reproduced_in_all_its_parts(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROFORMER_CACHE", str(index_of_the_data(tmp_path_factory)))
    shop = Shop(SHARED)
    goals, cases = shop.goals("synthetic"), recorded("golden_rewards.jsonl.xz")
    assert len(cases) > 1000
    for case in cases:
        goal = goals.goal(str(case["goal_idx"]))
        reward = purchase(shop, goal, case["asin"], case["options"])
        assert reward.total == pytest.approx(case["reward"], abs=1e-9)
        assert parts(reward) == pytest.approx(case["info"], abs=1e-9)


def parts(reward: PurchaseReward) -> dict[str, float]:
    """Return the parts of a reward under WebShop's names."""
    total = reward.attributes + reward.options + 1
    shares = {"r_option": reward.options_found / max(1, reward.options), "w_option": reward.options / total}
    return {
        "r_type": reward.type_match.reward,
        "query_match": reward.type_match.query_match,
        "category_match": reward.type_match.category_match,
        "title_score": reward.type_match.title_score,
        "r_att": reward.attributes_found / reward.attributes,
        "w_att": reward.attributes / total,
        "r_price": reward.price_met,
        "w_price": 1 / total,
    } | (shares if reward.options else {})

"""Tests that WebShop's files become the same products, prices and goals as in WebShop itself."""

import json
import lzma
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.environments.registry import taskset
from retroformer.environments.webshop import data
from retroformer.environments.webshop.environment import GOALS_PER_PRODUCT, Webshop
from retroformer.environments.webshop.goals import ShoppingGoal
from retroformer.environments.webshop.shop import NO_ATTRIBUTES, Shop
from retroformer.errors import MissingInput, UnknownTask
from tests.support.data import needs_data
from tests.support.runs import ROOT
from tests.support.webshop import ATTRIBUTES, PRODUCTS, SHARED, make, recorded, row, write_shop


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    return write_shop(tmp_path / "data")


def goals_of(shop: Shop, kind: str = "synthetic") -> list[ShoppingGoal]:
    goals = shop.goals("human" if kind == "human" else "synthetic")
    return [goals.goal(str(idx)) for idx in range(len(goals.asins()))]


def test_a_row_becomes_a_product_with_its_price_as_the_page_shows_it(folder: Path) -> None:
    shop = Shop(folder)
    lamp, price = shop.product("B000000001")
    assert (lamp.title, lamp.query, price, lamp.price_tag) == ("Reading Lamp", "lamps", 10.0, "$10.0")
    assert lamp.options == (("color", ("sky blue", "red | white")), ("size", ('5"', "9 inch")))
    assert lamp.attributes == ("easy install", "long lasting")
    assert lamp.contents == (
        'reading lamp it shines. made with care.  color: sky blue, red | white, and size: 5", 9 inch'
    )


def test_a_range_of_prices_is_drawn_from_once_and_no_price_is_a_hundred_dollars(folder: Path) -> None:
    shop = Shop(folder)
    desk_lamp, price = shop.product("B000000002")
    assert desk_lamp.price_tag == "$1019.5 to $1200.0"
    assert 1019.5 < price < 1200
    assert shop.product("B000000002") == Shop(folder).product("B000000002")
    table, price = shop.product("B000000003")
    assert (table.price_tag, price, table.attributes) == ("$100.0", 100.0, NO_ATTRIBUTES)


def test_a_product_of_json_lines_may_have_null_for_its_texts(tmp_path: Path) -> None:
    lines = tmp_path / "products_full.jsonl"
    lines.write_text(json.dumps(row("B000000001", "Oak Lamp", full_description=None, small_description=None)))
    (lamp,) = (data.product(read, ()) for read in data.rows(lines))
    assert (lamp.description, lamp.bullets) == ("", ("",))


def test_only_the_first_product_of_an_asin_is_listed(folder: Path) -> None:
    shop = Shop(folder)
    assert shop.search("second product listed without") == ()
    with pytest.raises(KeyError):
        shop.product("nan")


def test_each_combination_of_options_is_a_goal_with_one_price_limit(folder: Path) -> None:
    goals = [goal for goal in goals_of(Shop(folder)) if goal.asin == "B000000001"]
    assert Counter(goal.options for goal in goals) == Counter(
        (("color", color), ("size", size)) for color in ("sky blue", "red | white") for size in ('5"', "9 inch")
    )
    (limit,) = {goal.price_upper for goal in goals}
    assert limit in (30, 40, 50)
    assert (
        'Find me easy install reading lamps with color: sky blue, and size: 5"'
        f", and price lower than {limit:.2f} dollars" in [goal.instruction for goal in goals]
    )


def test_human_goals_have_values_without_option_names(folder: Path) -> None:
    (goal,) = goals_of(Shop(folder), "human")
    assert (goal.options, goal.attributes) == (("oak",), ("solid wood",))
    assert goal.instruction == f"i want a table, and price lower than {goal.price_upper:.2f} dollars"


def test_recorded_prices_and_goals_take_precedence_over_drawn_ones(folder: Path) -> None:
    (folder / "product_prices_mine.json").write_text('{"B000000004": 26.5}')
    goal = {"asin": "B000000004", "instruction_text": "x", "attributes": ["a"], "price_upper": 30, "goal_options": {}}
    (folder / "goals_synthetic_mine.jsonl").write_text(json.dumps(goal) + "\n")
    shop = Shop(folder)
    assert shop.product("B000000004")[1] == 26.5
    assert goals_of(shop) == [ShoppingGoal("B000000004", "x", ("a",), (), 30.0)]
    (folder / "goals_synthetic_mine.jsonl").write_text(json.dumps(goal | {"asin": "B9"}) + "\n")
    with pytest.raises(MissingInput, match="asks for the product 'B9'"):
        Shop(folder).goals("synthetic")


def test_new_data_build_a_new_shop(folder: Path) -> None:
    assert Shop(folder).search("sofa") == ()
    write_shop(folder, [*PRODUCTS, row("B000000009", "Sofa")])
    assert Shop(folder).search("sofa") == ("B000000009",)


def test_edited_data_of_the_same_size_and_time_build_a_new_shop(folder: Path) -> None:
    write_shop(folder, [*PRODUCTS, row("B000000009", "Sofa")])
    assert Shop(folder).search("sofa") == ("B000000009",)
    for path in filter(Path.is_file, folder.iterdir()):
        status = path.stat()
        path.write_bytes(path.read_bytes().replace(b"Sofa", b"Lamp"))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert Shop(folder).search("sofa") == ()


def test_large_files_are_read_entry_by_entry(tmp_path: Path) -> None:
    path = tmp_path / "items_shuffle.json"
    entries = [{"a": "x" * 700_000}, 12, [1, {"b": None}], "\u00e9\U0001f525", {"c": "y" * 3_000_000}, -1.5]
    path.write_text(json.dumps(entries, indent=2, ensure_ascii=False))
    assert list(data.rows(path)) == entries
    with lzma.open(tmp_path / "items.json.xz", "wt") as file:
        json.dump({str(number): entry for number, entry in enumerate(entries)}, file)
    assert [value for _, value in data.items(tmp_path / "items.json.xz")] == entries


@pytest.mark.parametrize("text", ["", "[", "[1,", '{"a"', '[{"a": 1}', '["a', "nothing", "[1 nothing]", "{}"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "items_shuffle.json"
    path.write_text(text)
    with pytest.raises(MissingInput, match=r"items_shuffle\.json is damaged"):
        list(data.rows(path))


@pytest.mark.parametrize("products", [[{"name": "no ASIN"}], [{"asin": "B1", "name": 3}], [7]])
def test_data_of_another_shape_are_refused(folder: Path, products: list[dict[str, object]]) -> None:
    write_shop(folder, products)
    with pytest.raises(MissingInput, match="JSON of another shape"):
        Shop(folder)


def test_a_folder_without_the_data_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"Neither items_shuffle\*\.json nor products\*_full\.jsonl"):
        make(tmp_path).tasks()
    with pytest.raises(MissingInput, match=r"set environment\.data"):
        make(tmp_path, data=None).tasks()


def test_splits_are_by_index_and_training_limits_goals_per_product(folder: Path, tmp_path: Path) -> None:
    many = [
        row(f"B{number:09}", "Lamp", customization_options=_sizes(40 if number < 40 else 1)) for number in range(60)
    ]
    wanted = {"attributes": ["a"], "instruction": "Find me lamps", "instruction_attributes": ["a"]}
    write_shop(folder, many)
    with lzma.open(folder / "items_ins_v2_4.json.xz", "wt") as file:
        json.dump(ATTRIBUTES | {f"B{number:09}": wanted for number in range(60)}, file)
    ids = {
        split: [int(task.id) for task in make(folder, split=split).tasks()]
        for split in ("all", "test", "validation", "train", "products_train", "products_validation", "products_test")
    }
    assert ids["all"] == list(range(40 * 40 + 20))
    assert (ids["test"], ids["validation"]) == (list(range(500)), list(range(500, 1500)))
    asins = Shop(folder).goals("synthetic").asins()
    by_product = Counter(asins[1500:])
    assert max(by_product.values()) > GOALS_PER_PRODUCT
    kept = {asin: min(count, GOALS_PER_PRODUCT) for asin, count in by_product.items()}
    assert Counter(asins[idx] for idx in ids["train"]) == kept
    by_split = [Counter(asins[idx] for idx in ids[f"products_{split}"]) for split in ("train", "validation", "test")]
    assert [(len(counts), max(counts.values())) for counts in by_split] == [(30, GOALS_PER_PRODUCT), (15, 1), (15, 1)]
    assert set().union(*by_split) == set(asins)
    with pytest.raises(UnknownTask, match="choose one of test, validation, train, all, products_train"):
        make(folder, split="dev").tasks()


def _sizes(count: int) -> dict[str, list[dict[str, str]]]:
    return {"size": [{"value": str(number)} for number in range(count)]}


@needs_data("webshop")
def test_the_real_goals_and_prices_equal_those_that_webshop_draws_with_seed_0(folder: Path) -> None:
    bare = folder / "bare"
    bare.mkdir()
    for name in ("products_1k_full.jsonl.xz", "items_ins_v2_1000.json.xz"):
        shutil.copy(SHARED / name, bare)
    shop = Shop(bare)
    prices = json.loads((SHARED / "product_prices_seed0.json").read_text())
    assert {asin: shop.product(asin)[1] for asin in prices} == prices
    goals = recorded("goals_synthetic_seed0.jsonl.xz")
    assert [(goal.instruction, goal.price_upper) for goal in goals_of(shop)] == [
        (goal["instruction_text"], goal["price_upper"]) for goal in goals
    ]
    assert len(goals_of(shop, "human")) == 13


@needs_data("webshop")
@pytest.mark.parametrize("config", ["webshop", "reflexion-webshop"])
def test_the_papers_configs_show_the_requests_that_people_wrote(config: str) -> None:
    words = [f"environment.data={SHARED}", "environment.split=test"]
    source = taskset(load(ROOT / f"configs/paper/{config}.yaml", words).environment)
    tasks = source.tasks()
    assert "place order for a pack of 12 blue diamond almonds" in source.environment().reset(tasks[1]).observation
    assert len(tasks) == 13


@needs_data("webshop")
def test_a_split_without_a_goal_says_how_many_the_data_have() -> None:
    with pytest.raises(MissingInput, match=r"webshop has 13 human goals, none of them in split 'train', as the first"):
        taskset(Webshop(data=SHARED, goals="human")).tasks()

"""A shop of four invented products in WebShop's own files, and the real one of 1,000 if it is installed."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from retroformer.environments.webshop import WebshopTaskset, taskset
from retroformer.environments.webshop.environment import Webshop, WebshopEnvironment
from retroformer.method.records import Task, Transition
from tests.support.data import DATA, require_data

SHARED = DATA / "webshop"


def row(asin: str, name: str, **more: object) -> dict[str, object]:
    """Return a product in the form of items_shuffle.json."""
    return {
        "asin": asin,
        "name": name,
        "full_description": "",
        "small_description": ["Made with care. ", " "],
        "pricing": "$10.00",
        "customization_options": "",
        "category": "garden",
        "query": "lamps",
        "product_category": "Home \u203a Lighting \u203a Lamps",
        "images": ["https://example.org/one.jpg"],
        "brand": "none of the shop's business",
    } | more


COLORS_AND_SIZES = {
    "Color": [{"value": " Sky Blue ", "image": None}, {"value": "Red/White"}],
    "Size": [{"value": '5"'}, {"value": "9 inch"}],
    "Style": None,
}
PRODUCTS = [
    row("B000000001", "Reading Lamp", customization_options=COLORS_AND_SIZES, full_description="It shines."),
    row("B000000002", "Desk Lamp with Clamp", pricing="$1,019.50 - $1,200.00 - $9", small_description="A clamp."),
    row("B000000003", "Oak Table", query=" Tables ", product_category="Home \u203a Furniture", pricing=None),
    row("B000000004", "Oak Lamp", pricing="$25.00 $30.00", customization_options={"Finish": [{"value": "oil #2"}]}),
    row("B000000001", "A second product of this ASIN is not listed"),
    row("nan", "Nor is one without"),
]
ATTRIBUTES = {
    "B000000001": {
        "attributes": ["easy install", "long lasting"],
        "instruction": "Find me easy install reading lamps",
        "instruction_attributes": ["easy install"],
    },
    "B000000002": {"attributes": ["heavy duty"]},
    "B000000004": {
        "attributes": ["solid wood"],
        "instruction": "Find me solid wood lamps",
        "instruction_attributes": ["solid wood"],
    },
}
HUMAN = {
    "B000000003": [
        {"instruction": "i want a table.", "instruction_attributes": ["solid wood"], "instruction_options": ["oak"]},
        {"instruction": "no attributes, no goal", "instruction_attributes": [], "instruction_options": []},
    ]
}


def write_shop(folder: Path, products: list[dict[str, object]] = PRODUCTS) -> Path:
    """Write the files of the invented shop."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "items_shuffle_4.json").write_text(json.dumps(products, indent=1))
    (folder / "items_human_ins.json").write_text(json.dumps(HUMAN))
    with lzma.open(folder / "items_ins_v2_4.json.xz", "wt") as file:
        json.dump(ATTRIBUTES, file)
    return folder


def make(folder: Path, **knobs: object) -> WebshopTaskset:
    return taskset(Webshop.model_validate({"data": folder, "split": "all"} | knobs))


def visit(environment: WebshopEnvironment, idx: int, *actions: str) -> list[Transition]:
    """Return the opening of a goal, then the transition of each action."""
    opening = environment.reset(Task(id=str(idx), environment="webshop", split="all"))
    return [opening, *map(environment.step, actions)]


def index_of_the_data(folders: pytest.TempPathFactory) -> Path:
    """Return a folder for RETROFORMER_CACHE with the real shop, which the first caller builds. Skips without data."""
    require_data("webshop")
    cache = folders.getbasetemp() / "webshop-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETROFORMER_CACHE", str(cache))
        make(SHARED).tasks()
    return cache


def recorded(name: str) -> list[dict[str, Any]]:
    """Return the rows of one of the data's files."""
    with lzma.open(SHARED / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]

"""Tests of the documentation: commands run, keys and defaults are the config's, and links have targets."""

import importlib.util
import re
import shlex
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import TypeAdapter

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.config.imports import stage_package
from retroformer.environments.registry import section_class
from retroformer.environments.section import EnvironmentSection
from tests.support.commands import CONSOLE, STAGES
from tests.support.keys import ENVIRONMENTS, keys
from tests.support.runs import ROOT

PAGES = [ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
COMMAND_BLOCK = re.compile(r"^    (?=make |python |retroformer |accelerate |printf )(.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
KEY_ROW = re.compile(r"^\| (`[a-z_.]+`(?:, `[a-z_.]+`)*) \| (?:`(.*?)`)? ?\|", re.MULTILINE)


def commands() -> list[str]:
    """Commands in the documentation, without comments, split at pipes and `&&`."""
    shown = [
        part.strip()
        for page in PAGES
        for line in COMMAND_BLOCK.findall(page.read_text())
        for part in re.split(r"&&| \| (?=retroformer)", re.split(r"\s#\s", line)[0])
    ]
    return sorted({command for command in shown if not command.startswith("printf")})


def starting_with(*words: str) -> list[str]:
    return [command for command in commands() if command.startswith(words)]


def anchors(page: Path) -> set[str]:
    """Return the fragments of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_pages_show_commands() -> None:
    assert {"make demo", "make test"} <= set(commands())
    assert {command.split()[1] for command in starting_with("retroformer ")} == set(CONSOLE)


@pytest.mark.parametrize("command", starting_with("make "))
def test_every_make_target_exists(command: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    words = command.removeprefix("make ").replace("|", " ").split()
    # `evidence-1` is one seed of `evidence`.
    assert {re.sub(r"-\d+$", "", word) for word in words if not word.startswith("-") and "=" not in word} <= targets


def test_the_demo_trains_every_model_that_it_evaluates() -> None:
    (lines,) = re.findall(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = re.findall(r"-m ([a-z ]+) \$\(DEMO\)(.*)", lines)
    demo = ROOT / "configs/demo.yaml"
    trained = {
        load(demo, overrides.split()).stage_folder(command.split()[1]).name
        for command, overrides in commands
        if command.startswith("train ")
    }
    assert trained == {"warm", "sft", "reward-2", "ppo-2"}
    assert set(load(demo).eval.reflector_models) == trained - {"reward-2"} | {"base"}


@pytest.mark.parametrize("command", starting_with("retroformer ", "python ", "accelerate "))
def test_every_module_and_config_exists(command: str) -> None:
    words = shlex.split(re.sub(r"\bS\b", "1", command))
    if words[0] == "retroformer":
        assert words[1] in CONSOLE
        module = stage_package(words[1]) if words[1] in STAGES else "retroformer.__main__"
    elif "-m" in words:
        module = words[words.index("-m") + 1]
    else:
        assert (ROOT / words[1]).is_file()
        return
    assert importlib.util.find_spec(module) is not None
    configs = [word for word in words if word.startswith("configs/")]
    overrides = [word for word in words if re.fullmatch(r"[a-z_.]+=.+", word)]
    for config in configs:
        load(ROOT / config, overrides)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (fragment and fragment not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_in_docs_can_be_reached_from_the_readme() -> None:
    seen, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            links = LINK.findall(FENCED.sub("", page.read_text()))
            waiting += [
                (page.parent / link.partition("#")[0]).resolve() for link in links if not re.match(r"[a-z]+:", link)
            ]
    assert set(PAGES) <= seen


def test_the_table_of_keys_gives_the_defaults_of_the_config() -> None:
    experiment = Experiment.model_validate({"run": "any", "environment": {"name": "alfworld"}})
    rows = KEY_ROW.findall((ROOT / "docs/configuration.md").read_text().partition("## Important keys")[2])
    assert len(rows) >= 30
    paths = [f"{path}." for path in keys()]
    for row, default in rows:
        for key in re.findall(r"`(.*?)`", row):
            assert any(path.startswith(f"{key}.") for path in paths)
            if default:
                value: Any = attrgetter(key)(experiment)
                assert value == TypeAdapter(type(value)).validate_python(yaml.safe_load(default)), key


def test_the_table_of_environment_keys_has_every_key_with_its_default() -> None:
    row = re.compile(r"^\| `environment\.([a-z_]+)` \| ([a-z]+) \| (?:`(.*?)`)? ?\|", re.MULTILINE)
    rows = row.findall((ROOT / "docs/configuration.md").read_text())
    for key, name, default in rows:
        if default:
            value = Experiment.model_validate({"run": "any", "environment": {"name": name}}).model_dump(mode="json")
            assert value["environment"][key] == yaml.safe_load(default), key
    declared = {(name, key) for name in ENVIRONMENTS for key in section_class(name).model_fields}
    common = {(name, key) for name in ENVIRONMENTS for key in EnvironmentSection.model_fields}
    assert {(name, key) for key, name, _ in rows} == declared - common


@pytest.mark.parametrize("page", ["agents.md", "foreign-environments.md", "tools.md", "traces.md"])
def test_every_config_of_a_page_is_an_experiment(page: str, tmp_path: Path) -> None:
    configs = re.findall(r"^```yaml\n(run: .*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    assert configs
    for config in configs:
        (tmp_path / "page.yaml").write_text(config)
        load(tmp_path / "page.yaml")


def test_the_first_pages_share_no_eight_words() -> None:
    said: dict[str, str] = {}
    for page in ("README.md", "docs/index.md", "docs/agents.md"):
        prose = re.sub(r"^    .*$", "", FENCED.sub("", (ROOT / page).read_text()), flags=re.MULTILINE)
        words = re.findall(r"[\w.'-]+", prose.lower())
        for start in range(len(words) - 7):
            phrase = " ".join(words[start : start + 8])
            assert said.setdefault(phrase, page) == page, phrase


def test_the_new_loss_of_contributing_gives_the_number_worked_by_hand() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"Tensor": torch.Tensor}
    exec(code, names)
    loss = names["ipo_loss"]
    assert callable(loss)
    # 1 / (2 / 4) = 2, and (3 - 2)^2 = 1.
    assert loss(torch.tensor([3.0, 2.0]), 0.25).tolist() == [1.0, 0.0]


def test_agents_and_contributing_name_files_that_exist_and_agents_is_one_page() -> None:
    agents, contributing = ((ROOT / name).read_text() for name in ("AGENTS.md", "CONTRIBUTING.md"))
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)`", agents + contributing)
    assert {"train/losses.py", "retroformer/coach/", "retroformer/errors.py"} < set(named)
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert len(agents.splitlines()) < 60

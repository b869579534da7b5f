"""Every config of the papers runs as shipped on three tasks, and prints the sections that docs/papers.yaml names.

Only the addresses in the config, the folder of the data and the number of tasks are changed, and the kind of WebShop's
goals for training, as the thousand products have too few that people wrote. A training config leaves
its reflector to the experiment's own server, which would load 7 billion weights: it gets an address here, collects and
compares its arms. The training stages have tests of their own.
"""

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from collect.rate import rate_reflections
from eval.report.markdown import escape
from eval.report.report import compare_arms
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config, load, load_configs, load_domains
from retroformer.config.parts import chosen_tasks
from retroformer.files.text import differences
from retroformer.run.provenance import Provenance, ServedModel
from tests.support.data import require_data
from tests.support.endpoint import Endpoint, prompt_of
from tests.support.papers import Row, read_ledger
from tests.support.runs import ROOT
from tests.support.scripted_model import ScriptedModel, walkthroughs_of

DOMAINS = ROOT / "configs" / "paper" / "domains.yaml"
CONFIGS = sorted(path for path in (ROOT / "configs" / "paper").glob("*.yaml") if path != DOMAINS)
TASKS = 3
RUST = shutil.which("rustc") or shutil.which("rustc", path=str(Path.home() / ".cargo" / "bin"))
AFTER_TRAINING = {"How the models were trained"}
"""Headings of a report on models that this run trained; tests/train and tests/eval/report check them."""
CHANGED = re.compile(r"(.+\.)?base_url|environment\.(data|goals)|(eval|collect)\.tasks")
"""Keys that a test may change."""
MADE_GOALS = {"webshop": ("environment.goals=synthetic",)}
PROBLEMS = [
    {
        "id": f"add-{number}",
        "prompt": f'def add_{number}(n):\n    """The sum of n and {number}."""\n',
        "entry_point": f"add_{number}",
        "tests": [f"assert add_{number}(1) == {number + 1}"],
    }
    for number in range(TASKS)
]


def trains(config: Path) -> bool:
    return "train" in yaml.safe_load(config.read_text())


def changed_configs() -> list[tuple[Path, tuple[str, ...]]]:
    """Return the configs with the overrides of their rows, where these change more of an evaluation than its tasks."""
    rows = {(ROOT / row.path, row.overrides) for row in read_ledger().rows if row.command == "eval"}
    return sorted((path, words) for path, words in rows if path in CONFIGS and not trains(path) and _matters(words))


def _matters(overrides: tuple[str, ...]) -> bool:
    return any(not word.startswith(("run=", "environment.split=")) for word in overrides)


QUICK = ("alfworld", "webshop", "reflexion-hotpotqa-cot", "reflexion-leetcode", "sala-alfworld")
"""Cases outside the slow tier: each paper and each environment, once at least."""
CASES = [
    pytest.param(path, overrides, id=name, marks=[] if name in QUICK else [pytest.mark.slow])
    for path, overrides in [*((path, tuple[str, ...]()) for path in CONFIGS), *changed_configs()]
    for name in (" ".join((path.stem, *overrides)),)
]


def data_of(experiment: Experiment, folder: Path) -> Path:
    """Return the folder of a config's data, writing a user's own file if it names one; skip if data are missing."""
    environment = experiment.environment
    if environment.split.endswith(".jsonl"):
        (folder / environment.split).write_text("".join(f"{json.dumps(problem)}\n" for problem in PROBLEMS))
        return folder
    data = require_data(environment.name)
    if "rust" in environment.split and RUST is None:
        pytest.skip("no Rust compiler: install rustc")
    return data


def scripted(config: Path, overrides: tuple[str, ...], folder: Path) -> Endpoint:
    """Return an endpoint that plays a config; it wins games only for SALA, whose attempts else have 49 actions each."""
    shipped = load(config, overrides)
    data = data_of(shipped, folder)
    played = load(config, (*overrides, f"environment.data={data}"))
    adapts = any(arm.prompts == "sala" for arm in shipped.eval.arms.values())
    endpoint = Endpoint(ScriptedModel(played, walkthroughs_of(played, TASKS) if adapts else None))
    prove_adapters(endpoint, played)
    return endpoint


def prove_adapters(endpoint: Endpoint, experiment: Experiment) -> None:
    """Let the endpoint report an adapter for each model of an arm, as a server of this project does."""
    names = [str(arm.model) for arm in experiment.eval.arms.values() if arm.kind == "model"]
    adapter = ServedModel(base_sha256="b" * 64, adapter_sha256="a" * 64, chat_template_sha256="c" * 64)
    reported = Provenance(models=dict.fromkeys(names, adapter), dtype="float32", versions={})
    endpoint.provenance = reported.model_dump_json()


def opened(config: Path, folder: Path, overrides: tuple[str, ...], url: str) -> Config:
    """Load a copy of a config with every address in it replaced by this one, on three tasks."""
    copy = folder / config.name
    text, count = re.subn(r"base_url: [^,}\s]+", f"base_url: {url}", config.read_text())
    assert count
    copy.write_text(text)
    data = data_of(load(config, overrides), folder)
    words = (*overrides, f"environment.data={data}", f"eval.tasks={TASKS}")
    if trains(config):
        words += (f"reflector.endpoint.base_url={url}", f"collect.tasks={TASKS}", *MADE_GOALS.get(config.stem, ()))
    return Config(copy, words, load(copy, words))


def changes(shipped: Experiment, played: Experiment) -> list[str]:
    """Return the keys in which the two configs differ."""
    return [change.partition("=")[0] for change in differences(*(_dump(config) for config in (shipped, played)))]


def _dump(experiment: Experiment) -> dict[str, object]:
    return experiment.model_dump(mode="json")


def report_of(config: Config) -> str:
    asyncio.run(compare_arms(config))
    return (config.experiment.folder / "eval" / "report.md").read_text()


def rows_of(config: Path) -> list[Row]:
    return [row for row in read_ledger().rows if ROOT / row.path == config]


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETROFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize(("path", "overrides"), CASES)
def test_a_config_of_the_papers_runs_as_shipped(
    path: Path, overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with scripted(path, overrides, tmp_path) as server:
        config = opened(path, tmp_path, overrides, server.url)
        experiment = config.experiment
        assert [key for key in changes(load(path, overrides), experiment) if not CHANGED.fullmatch(key)] == []
        summary = asyncio.run(rate_reflections(config)) if trains(path) else ""
        report = report_of(config)
    headings = set(re.findall(r"^## (.+)$", report, re.MULTILINE))
    rows = rows_of(path)
    assert {row.heading for row in rows if row.heading} - AFTER_TRAINING <= headings
    assert {row.summary_line for row in rows if row.summary_line} <= {
        line.split(" ")[0] for line in summary.split("\n")
    }
    assert all(f"| {arm} |" in report for arm in experiment.eval.arms)
    assert all(f"| {actor} |" in report for actor in experiment.eval.actors)
    # A trained model is asked by its name with a part of its hash.
    assert {body["model"].partition("@")[0] for body in server.requests} == models_of(experiment, collects=trains(path))


@pytest.mark.slow
def test_the_config_with_domains_runs_as_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = load_domains(DOMAINS)
    with ExitStack() as stack:
        words = [f"eval.tasks={TASKS}", f"collect.tasks={TASKS}"]
        for experiment in shipped:
            server = stack.enter_context(Endpoint(ScriptedModel(experiment)))
            prove_adapters(server, experiment)
            words.append(f"domains.{experiment.domain}.environment.data={data_of(experiment, tmp_path)}")
            words.append(f"domains.{experiment.domain}.actor.endpoint.base_url={server.url}")
        configs = load_configs(DOMAINS, [*words, f"reflector.endpoint.base_url={server.url}"])
        for experiment, config in zip(shipped, configs, strict=True):
            changed = [key for key in changes(experiment, config.experiment) if not key.startswith("domains.")]
            assert [key for key in changed if not CHANGED.fullmatch(key)] == []
        assert all("rated: " in asyncio.run(rate_reflections(config)) for config in configs)
        asyncio.run(compare_arms(*configs))
    report = (shipped[0].folder / "eval" / "report.md").read_text()
    assert {row.heading for row in rows_of(DOMAINS)} <= set(re.findall(r"^## (.+)$", report, re.MULTILINE))
    for experiment in shipped:
        assert all(f"| {experiment.domain} | {arm} | {TASKS} |" in report for arm in experiment.eval.arms)
        assert (experiment.report_folder / "report.html").is_file()


def models_of(experiment: Experiment, *, collects: bool) -> set[str]:
    """Return the models that a config asks, as far as the roles and arms name them."""
    section = experiment.eval
    if section.actors:
        return {endpoint.model for endpoint in section.actors.values()}
    asked = {experiment.actor.endpoint.model}
    asked |= {str(arm.model) for arm in section.arms.values() if arm.kind == "model"}
    return asked | ({experiment.reflector.endpoint.model} if collects else set())


def test_the_model_of_sala_solves_what_it_adapts_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By trial 0 it has the two games of the first opening, by trial 1 all three: its adaptation is in its prompt.

    ReAct plays trial 0 with two examples and no failures. A thought, which the model writes first, is a step of a game.
    """
    monkeypatch.chdir(tmp_path)
    path = ROOT / "configs" / "paper" / "sala-alfworld.yaml"
    with scripted(path, (), tmp_path) as server:
        config = opened(path, tmp_path, ("loop.trials=2",), server.url)
        report = report_of(config)
        prompts = [prompt for prompt in map(prompt_of, server.requests) if "Your task is to:" in prompt]
    # Two examples and this game for ReAct; two examples, two failures and this game for SALA.
    assert {(prompt.count("Your task is to:"), "STATUS: FAIL" in prompt) for prompt in prompts} == {
        (3, False),
        (5, True),
    }
    (walkthrough, *_) = walkthroughs_of(config.experiment, TASKS).values()
    game = next(iter(chosen_tasks(config.experiment, 1))).id
    for arm in ("ReAct", "SALA"):
        assert f"| {escape(game)} | {arm} | {1 + len(walkthrough)}, solved | - |" in report
    (row, *_) = re.findall(r"^\|.* SALA \| (0\.667 .*) \|$", report, re.MULTILINE)
    assert re.match(r"0\.667 \[[^\]]+\] \| 1\.000 \[", row)


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_of_the_papers_runs_on_the_embedded_model(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = yaml.safe_load(path.read_text())
    small = {"model": "base"}
    for section in ("actor", "reflector", "evaluator"):
        if "endpoint" in text.get(section, {}):
            text[section]["endpoint"] = small
    if actors := text["eval"].get("actors"):
        text["eval"]["actors"] = {next(iter(actors)): small}
    for arm in text["eval"]["arms"].values():
        if "model" in arm:
            arm["model"] = "base"
    text["serve"] = {"port": 0}
    embedded = tmp_path / "embedded.yaml"
    embedded.write_text(yaml.safe_dump(text, sort_keys=False))
    # Such a small model ends few attempts by itself, and every action costs seconds.
    words = (
        *("actor.max_new_tokens=40", "reflector.max_new_tokens=40", "loop.actions=5", "loop.trials=2"),
        *("train.base_model=embedded", "train.quantization=none", f"eval.tasks={TASKS}", f"collect.tasks={TASKS}"),
        f"environment.data={data_of(load(path), tmp_path)}",
        *MADE_GOALS.get(path.stem, ()),
    )
    config = Config(embedded, words, load(embedded, words))
    said = asyncio.run(rate_reflections(config)) if trains(path) else report_of(config)
    assert "rated" in said or "| arm |" in said or "| actor |" in said

"""Tests of docs/papers.yaml: it has every item of the papers, names what exists, and the page is made of it."""

import re
import shlex
from collections.abc import Iterator

import pytest
import yaml
from pydantic import ValidationError

from retroformer.config.experiment import Experiment
from retroformer.config.file import load, load_domains
from retroformer.config.parts import check_prompts
from retroformer.method.prompts import load_pack
from tests.support.papers import LEDGER, PAGE, STATUSES, Row, numbered_items, read_ledger, render
from tests.support.runs import ROOT

COLUMNS = {"id": "a", "paper": "b", "where": "Fig. 1", "shows": "It.", "section": "S", "departures": []}
HEADING = re.compile(r"""(?:"|## )([A-Z][A-Za-z0-9', ]+?)(?:\\n|")""")
"""A string in the code of the report that can be a heading."""


def headings_in_code() -> set[str]:
    """Return the headings that the report's code, or a chapter of an environment, can write."""
    files = [*(ROOT / "eval" / "report").glob("*.py"), *(ROOT / "retroformer" / "environments").rglob("*.py")]
    return {heading for path in files for heading in HEADING.findall(path.read_text())}


def test_the_page_is_made_of_the_ledger() -> None:
    assert PAGE.read_text() == render(read_ledger()), "run python -m tests.support.papers"


def test_ids_are_unique_and_papers_are_listed() -> None:
    ledger = read_ledger()
    ids = [row.id for row in ledger.rows]
    assert len(ids) == len(set(ids)) >= 90
    assert {row.paper for row in ledger.rows} == set(ledger.papers)


def test_every_numbered_figure_and_table_has_a_row() -> None:
    ledger = read_ledger()
    for name, paper in ledger.papers.items():
        numbered = {f"Fig. {number + 1}" for number in range(paper.figures)}
        numbered |= {f"Table {number + 1}" for number in range(paper.tables)}
        found = numbered_items(row for row in ledger.rows if row.paper == name)
        assert found == numbered, name


def test_every_status_is_allowed() -> None:
    assert all(row.status in STATUSES for row in read_ledger().rows)
    assert "not possible" not in LEDGER.read_text()
    with pytest.raises(ValidationError, match="status"):
        Row.model_validate(COLUMNS | {"status": "not possible"})


def test_every_config_loads_with_its_overrides() -> None:
    for row in read_ledger().rows:
        if row.config:
            (run,) = {experiment.run for experiment in load_domains(ROOT / row.path, row.overrides)}
            assert [word for word in row.overrides if word.startswith("run=")] in ([], [f"run={run}"]), row.id


def test_every_override_has_a_run_of_its_own() -> None:
    """Facts of other settings are refused in the same run, and other numbers of trials would share its report."""
    for row in read_ledger().rows:
        assert not row.overrides or any(override.startswith("run=") for override in row.overrides), row.id


def test_overrides_of_prompts_keep_the_grammar_of_the_environment() -> None:
    rows = [row for row in read_ledger().rows if any("prompts=" in override for override in row.overrides)]
    assert rows
    for row in rows:
        experiment = load(ROOT / row.path, row.overrides)
        generated = {"source": "generated"} if experiment.environment.name == "alfworld" else {}
        environment = experiment.environment.model_copy(update=generated)
        check_prompts(experiment.model_copy(update={"environment": environment}))


def test_a_row_that_shows_a_prompt_pack_shows_its_config_s_pack_or_what_that_extends() -> None:
    rows = [row for row in read_ledger().rows if row.file.startswith("retroformer/method/packs/")]
    assert len(rows) > 15
    for row in rows:
        assert row.file in packs_of(load(ROOT / row.path, row.overrides)), row.id


def packs_of(experiment: Experiment) -> Iterator[str]:
    """Yield the paths of the prompt packs of the config and of its arms, each followed by those that it extends."""
    for name in (experiment.actor.prompts, *(arm.prompts for arm in experiment.eval.arms.values())):
        while name:
            path = f"retroformer/method/packs/{experiment.environment.name}-{name}.yaml"
            yield path
            name = yaml.safe_load((ROOT / path).read_text()).get("extends", "")


def test_the_reflectors_of_the_papers_read_two_examples_and_one_in_rust() -> None:
    """SALA's single model reads its own prompt, which has failed attempts among the examples of the actor."""
    for path in (ROOT / "configs" / "paper").glob("*.yaml"):
        for experiment in load_domains(path):
            if experiment.reflector.view == "full":
                pack = load_pack(experiment.actor.prompts, experiment.environment.name)
                assert len(pack.reflect_examples) == (1 if "rust" in experiment.environment.split else 2), path.name
            else:
                assert path.stem.startswith("sala")


def test_every_config_of_the_papers_has_a_row() -> None:
    shipped = {str(path.relative_to(ROOT)) for path in (ROOT / "configs" / "paper").glob("*.yaml")}
    assert shipped
    assert shipped <= {row.path for row in read_ledger().rows}


def test_every_departure_exists() -> None:
    text = (ROOT / "docs" / "departures.md").read_text()
    numbers = {int(number) for number in re.findall(r"^([0-9]+)\. \*", text, re.MULTILINE)}
    named = {item for row in read_ledger().rows for item in row.departures if isinstance(item, int)}
    assert named
    assert named <= numbers


def test_every_section_is_written_by_the_report_or_exists() -> None:
    can_be_written = headings_in_code()
    summary = (ROOT / "collect" / "rate.py").read_text()
    assert "Solved by trial" in can_be_written
    for row in read_ledger().rows:
        if row.file:
            assert (ROOT / row.file).is_file(), row.id
        elif row.summary_line:
            assert re.search(rf'f"{row.summary_line} +\{{', summary), row.id
        else:
            assert row.heading in can_be_written, row.id


def test_a_row_has_a_command_of_the_list_if_it_has_a_config() -> None:
    ledger = read_ledger()
    for row in ledger.rows:
        assert row.command in {"", *ledger.commands}, row.id
        assert row.command or not row.config, row.id
        assert row.config or (row.file and "CONFIG" not in ledger.commands.get(row.command, "")), row.id
        assert not row.summary_line or row.command == "collect", row.id


def test_the_first_line_of_a_config_is_its_row_s_command() -> None:
    """The line names the first stage; the other stages of a training config follow in the ledger."""
    ledger = read_ledger()
    for row in ledger.rows:
        if not row.path.startswith("configs/paper/") or row.overrides:
            continue
        first = (ROOT / row.path).read_text().partition("\n")[0].removeprefix("# ")
        stage = ledger.commands[row.command].split(" && ")[0].replace("CONFIG", row.path)
        if row.command == "eval" and "train:" in (ROOT / row.path).read_text():
            stage = stage.replace("retroformer eval", "retroformer collect")
        assert shlex.split(first) == shlex.split(stage), row.id

"""Tests of `retroformer init`: what it writes runs, and it overwrites nothing."""

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collect.plan import describe_plan
from collect.rate import rate_reflections
from retroformer.__main__ import main
from retroformer.config.starter import FILES
from retroformer.errors import BudgetExhausted, ConfigError
from tests.support.endpoint import Body, Endpoint, prompt_of
from tests.support.runs import open_config


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("agent", None)


def test_the_files_are_written_to_this_folder_or_a_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    main(["init"], program="retroformer")
    assert capsys.readouterr().out.endswith("\nNext: retroformer collect agent.yaml\n")
    main(["init", "a/new/one"], program="retroformer")
    assert capsys.readouterr().out.endswith("\nNext: cd a/new/one && retroformer collect agent.yaml\n")
    for folder in (Path(), Path("a/new/one")):
        assert {path.name for path in folder.iterdir() if path.is_file()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_no_file_is_overwritten(name: str) -> None:
    Path(name).write_text("mine")
    with pytest.raises(ConfigError, match=rf"^{re.escape(name)} already exists: name another folder\.$"):
        main(["init"])
    assert [path.name for path in Path().iterdir()] == [name]
    assert Path(name).read_text() == "mine"


def test_a_teacher_that_repeats_the_wish_satisfies_every_customer_at_its_price() -> None:
    def repeat(body: Body) -> str:
        (wish,) = re.findall(r"still angry: [^.]+\. (.+)", prompt_of(body))
        return str(wish)

    main(["init"])
    with Endpoint(repeat) as server:
        teacher = f"reflector.teacher={{base_url: {server.url}, model: big, dollars_per_million: [1000, 1000]}}"
        config = open_config(Path("agent.yaml"), teacher, "collect.candidates=1")
        assert "teacher   at most 48,000 prompt" in describe_plan(config)
        collected = asyncio.run(rate_reflections(config))
        assert "32 rated: 32 positive" in collected
        # Most texts of the default model do not end: what follows the first paragraph is repetition.
        assert all(request["stop"] == ["\n"] for request in server.requests)
        assert "224 prompt, 96 completion in 32 calls, 0.32 dollars" in collected
        other = open_config(Path("agent.yaml"), teacher, "collect.candidates=1", "run=poor", "collect.dollars=0.05")
        with pytest.raises(BudgetExhausted, match=r"The budget of 0\.05 dollars is spent"):
            asyncio.run(rate_reflections(other))

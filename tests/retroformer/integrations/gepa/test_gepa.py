"""GEPA optimises a document on real retries; its proposer is a real endpoint with a fixed answer."""

import asyncio
import re
from pathlib import Path

import pytest

from collect.rate import rate_reflections
from eval.report.report import compare_arms
from retroformer.errors import InfrastructureFailure, MissingInput
from retroformer.run.arm_names import COLLECT, DOCUMENT
from tests.support.endpoint import Behaviour, Body, Endpoint, prompt_of, reply_to
from tests.support.runs import HOUSEHOLD, facts, open_config, write_config

pytestmark = pytest.mark.usefixtures("workplace")

search = pytest.importorskip("retroformer.integrations.gepa.search", reason="the extra gepa is not installed")

SETTINGS = {"retries": 60, "proposer": None, "tokens": 100}
KINDS = ("fridge", "microwave", "dresser", "bed", "sidetable", "garbagecan", "diningtable", "countertop")
GUIDE = f"Look in {', '.join(f'{kind} {number}' for kind in KINDS for number in (2, 1))}."
ARMS = {"nothing": {"kind": "none"}, "guide": {"kind": "document", "file": "runs/toy/gepa/document.md"}}
CONFIG = HOUSEHOLD | {"eval": HOUSEHOLD["eval"] | {"arms": ARMS}}


def propose(body: Body) -> str:
    return f"```\n{GUIDE}\n```" if "new instruction" in prompt_of(body) else reply_to(body)


def test_a_document_that_helps_is_kept_and_can_be_an_arm(tmp_path: Path) -> None:
    with Endpoint(propose) as server:
        config = open_config(write_config(tmp_path, server.url, CONFIG), "collect.tasks=24", "loop.trials=2")
        with pytest.raises(MissingInput, match="run `retroformer collect"):
            search.optimize(config, **SETTINGS)
        asyncio.run(rate_reflections(config))
        summary = search.optimize(config, **SETTINGS)
        written = facts(config, DOCUMENT)
        asked = len(server.requests)
        # A search that has ended is only read again.
        assert search.optimize(config, **SETTINGS) == summary
        assert (len(server.requests), facts(config, DOCUMENT).counts) == (asked, written.counts)
        # One with other settings begins anew; only its retries with the same documents are stored already.
        assert search.optimize(config, **SETTINGS | {"tokens": 90}) == summary
        assert len(server.requests) > asked
        assert facts(config, DOCUMENT).counts == written.counts
        asked = len(server.requests)
        asyncio.run(compare_arms(config))
    assert Path("runs/toy/gepa/document.md").read_text() == f"{GUIDE}\n"
    assert {stored.reflection.text for stored in written.reflections} == {search.START, GUIDE}
    first, best = map(float, re.findall(r"[+-]\d\.\d+", summary))
    assert best > first
    report = Path("runs/toy/eval/report.md").read_text()
    assert "the text of `runs/toy/gepa/document.md`, the same after every failure" in report
    # Calls and tokens of collecting and of the search, by the endpoint's own count of 10 tokens a call.
    made = report.split("## What the arms cost to make and to use")[1]
    rated = len(facts(config, COLLECT).reflections) + len(written.reflections)
    assert f"| guide | {rated} | {asked} | {10 * asked} | 0 | 0 |" in made


def test_a_teacher_proposes_and_if_it_cannot_be_reached_the_search_stops_and_loses_nothing(tmp_path: Path) -> None:
    with Endpoint(propose) as server:
        path, teacher = (
            write_config(tmp_path, "http://127.0.0.1:1/v1", CONFIG),
            {"base_url": server.url, "model": "big"},
        )
        config = open_config(path, "collect.tasks=24", "loop.trials=2", f"reflector.teacher={teacher}")
        asyncio.run(rate_reflections(config))
        server.behaviour = Behaviour.ERROR
        with pytest.raises(InfrastructureFailure):
            search.optimize(config, **SETTINGS)
        played = facts(config, DOCUMENT).counts
        assert played[0] > 0
        server.behaviour = Behaviour.WELL
        search.optimize(config, **SETTINGS)
    assert Path("runs/toy/gepa/document.md").read_text() == f"{GUIDE}\n"

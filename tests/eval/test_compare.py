"""The whole of `eval` on generated games: arms that share trial 0, a placebo, and a server that misbehaves."""

import asyncio
from pathlib import Path

import pytest

from collect.rate import rate_reflections
from eval.compare import compare_arms
from retroformer.arms import FIRST_TRIAL
from retroformer.assembly import Page
from retroformer.errors import ConfigError, EndpointFailure, InfrastructureFailure
from retroformer.records import Outcome
from tests.support.endpoint import Behaviour, Endpoint
from tests.support.runs import facts, open_page, run, write_page

REMOTE, PLACEBO, ALONE = "eval/remote reflector", "eval/placebo", "eval/no reflection"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def compare(page: Page) -> str:
    return asyncio.run(compare_arms(page))


def test_every_arm_retries_the_failures_of_the_shared_first_trial(tmp_path: Path) -> None:
    with Endpoint() as server:
        page = open_page(write_page(tmp_path, server.url), "loop.trials=2")
        assert compare(page) == "report: runs/toy/eval/report.html"
    first = facts(page, FIRST_TRIAL).trajectories
    failed = {key.task_id for key, one in first.items() if one.outcome is Outcome.FAILURE}
    assert len(first) == 6
    assert failed
    for arm in (REMOTE, PLACEBO, ALONE):
        assert {key.task_id for key in facts(page, arm).trajectories} == failed
        assert {key.trial for key in facts(page, arm).trajectories} == {1}


def test_the_arm_without_advice_repeats_its_failures_and_the_placebo_reads_what_was_meant_for_others(
    tmp_path: Path,
) -> None:
    with Endpoint() as server:
        page = open_page(write_page(tmp_path, server.url), "loop.trials=2")
        compare(page)
    assert all(one.outcome is Outcome.FAILURE for one in facts(page, ALONE).trajectories.values())
    assert all(one.reflection.text == "" for one in facts(page, ALONE).reflections)
    meant_for: dict[str, set[str]] = {}
    for one in facts(page, REMOTE).reflections:
        meant_for.setdefault(str(one.reflection.prompt), set()).add(one.key.task_id)
    placebo = facts(page, PLACEBO).reflections
    assert placebo
    assert all(one.key.task_id not in meant_for[str(one.reflection.prompt)] for one in placebo)


def dies_after(requests: int, server: Endpoint) -> None:
    def die(number: int) -> None:
        if number > requests:
            server.behaviour = Behaviour.NO_CHOICES

    server.before_answer = die


def recovers(server: Endpoint) -> None:
    server.before_answer = lambda number: None
    server.behaviour = Behaviour.WELL


def test_tasks_that_an_endpoint_left_unfinished_are_not_in_the_numbers_and_a_later_run_adds_them(
    tmp_path: Path,
) -> None:
    with Endpoint() as server:
        dies_after(2, server)
        page = open_page(write_page(tmp_path, server.url), "loop.trials=2", "eval.arms.placebo.kind=none")
        with pytest.raises(
            InfrastructureFailure,
            match="unfinished in an arm; the report shows rates without them",
        ):
            compare(page)
        broken = (tmp_path / "runs/toy/eval/report.md").read_text()
        assert "of 6 held-out tasks of split `held_out` were finished in every arm" in broken
        assert "6 of 6" not in broken
        assert "answered what is not a completion" in broken
        assert broken.count("Over all 6 tasks, unfinished ones counted as failures:") == 3
        recovers(server)
        compare(page)
        whole = (tmp_path / "runs/toy/eval/report.md").read_text()
        assert "6 of 6 held-out tasks" in whole
        assert "Over all 6 tasks" not in whole


def test_a_placebo_waits_until_all_that_it_deals_out_is_written(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_page(tmp_path, server.url)
        compare(open_page(path, "run=whole", "loop.trials=2"))
        server.requests.clear()
        dies_after(2, server)
        with pytest.raises(InfrastructureFailure, match="its advice cannot be dealt out yet: run the same command"):
            compare(open_page(path, "loop.trials=2"))
        assert facts(open_page(path), PLACEBO).counts == (0, 0)
        recovers(server)
        compare(open_page(path, "loop.trials=2"))
    assert facts(open_page(path), PLACEBO).same_as(facts(open_page(path, "run=whole"), PLACEBO))


def test_an_endpoint_that_does_not_answer_the_probe_stops_eval_before_the_first_trial(tmp_path: Path) -> None:
    with Endpoint() as server:
        server.behaviour = Behaviour.ERROR
        page = open_page(write_page(tmp_path, server.url))
        with pytest.raises(EndpointFailure, match="answered 500"):
            compare(page)
    assert facts(page, FIRST_TRIAL).counts == (0, 0)


def test_tasks_that_were_trained_on_are_refused(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_page(tmp_path, server.url)
        asyncio.run(rate_reflections(open_page(path, "collect.tasks=3")))
        with pytest.raises(ConfigError, match=r"evaluation tasks were used for training.*eval.split=NAME"):
            compare(open_page(path, "eval.split=train"))


@pytest.mark.parametrize("of", ["nobody", "placebo", ""])
def test_a_placebo_of_an_arm_that_does_not_write_is_refused(tmp_path: Path, of: str) -> None:
    page = open_page(
        write_page(tmp_path, "http://127.0.0.1:1/v1"), f"eval.arms.placebo.of={of or '~'!s}".replace("~", '""')
    )
    with pytest.raises(ConfigError, match="is no arm that writes; name one of no reflection, remote reflector"):
        compare(page)


def test_a_changed_arm_never_mixes_with_the_facts_of_the_old_one(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_page(tmp_path, server.url)
        words = ("eval.tasks=2", "loop.trials=2", "eval.arms.placebo.of=no reflection", "eval.arms.placebo.kind=none")
        compare(open_page(path, *words))
        with pytest.raises(ConfigError, match=r"'eval/remote reflector' facts made with arm.model='big', not 'bigger'"):
            compare(open_page(path, *words, "eval.arms.remote reflector.model=bigger"))


def test_from_the_command_line_a_fault_is_one_sentence_and_status_1(tmp_path: Path) -> None:
    done = run(tmp_path, "eval", str(write_page(tmp_path, "http://127.0.0.1:1/v1")))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "The model 'big' at http://127.0.0.1:1/v1 APIConnectionError: Connection error.\n"

"""Tests of the records of promotions: what follows from them, and that none is lost, changed or overtaken."""

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retroformer.errors import ConfigError, DamagedFile, MissingInput
from retroformer.run.promotions import Evidence, History, PromotedAdapter, current_of, roll_back, stack_of
from retroformer.run.provenance import folder_sha256

EVIDENCE = Evidence(
    against="no advice", pairs=30, better=9, worse=1, mean_difference=0.25, log_wealth=3.1, level=0.05, arms=("gate/a",)
)


def adapter(folder: Path, weights: str) -> Path:
    """Write a small adapter whose weights are this text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_text(weights)
    return folder


def promote(history: History, adapter: PromotedAdapter) -> None:
    history.append(history.records(), "promoted", adapter, "test", EVIDENCE)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "runs" / "mine")


@pytest.fixture
def three(history: History, tmp_path: Path) -> list[PromotedAdapter]:
    return [history.keep(name, adapter(tmp_path / name, f"weights of {name}")) for name in ("sft", "dpo", "ppo")]


def test_a_rollback_leads_to_the_adapter_before_and_in_the_end_to_no_advice(
    history: History, three: list[PromotedAdapter]
) -> None:
    assert history.current() is None
    for one in three:
        promote(history, one)
    assert history.current() == three[2]
    assert [roll_back(history, history.records(), "worse").adapter for _ in range(3)] == [three[1], three[0], None]
    assert history.current() is None
    with pytest.raises(MissingInput, match="there is none to go back from"):
        roll_back(history, history.records(), "worse")
    promote(history, three[1])
    assert stack_of(history.records()) == [three[1]]
    assert history.length == 7


def test_a_later_test_of_the_current_adapter_does_not_make_it_its_own_predecessor(
    history: History, three: list[PromotedAdapter]
) -> None:
    history.append((), "first", three[0], "nothing was served before")
    promote(history, three[0])
    assert stack_of(history.records()) == [three[0]]
    assert roll_back(history, history.records(), "worse").adapter is None


def test_a_record_keeps_its_evidence(history: History, three: list[PromotedAdapter]) -> None:
    promote(history, three[0])
    (record,) = History(history.folder.parent).records()
    assert (record.evidence, record.adapter, record.replaced, record.number) == (EVIDENCE, three[0], None, 1)
    assert str(record.evidence) == (
        "9 better, 1 worse of 30 pairs against no advice, mean difference +0.250, level 0.05"
    )


def test_of_two_commands_that_decide_at_once_one_is_refused(history: History, three: list[PromotedAdapter]) -> None:
    known = history.records()

    def decide(one: PromotedAdapter) -> str:
        try:
            history.append(known, "promoted", one, "test")
        except ConfigError as error:
            return str(error)
        return "kept"

    with ThreadPoolExecutor(3) as threads:
        answers = sorted(threads.map(decide, three), key=len)
    assert answers[0] == "kept"
    assert all("Another command has changed the reflector" in answer for answer in answers[1:])
    assert history.length == 1
    assert len([path for path in history.folder.iterdir() if path.name != "adapters"]) == 1


def test_the_copy_of_an_adapter_outlives_its_stage(
    history: History, three: list[PromotedAdapter], tmp_path: Path
) -> None:
    adapter(tmp_path / "sft", "weights after training again")
    shutil.rmtree(tmp_path / "dpo")
    for one in three[:2]:
        assert folder_sha256(history.folder_of(one)) == one.sha256
    assert history.keep("sft", tmp_path / "sft") != three[0]
    assert history.keep("ppo", tmp_path / "ppo") == three[2]


def test_an_altered_copy_is_made_again_by_the_next_promotion(
    history: History, three: list[PromotedAdapter], tmp_path: Path
) -> None:
    (history.folder_of(three[0]) / "adapter_model.safetensors").write_text("other weights")
    assert history.keep("sft", tmp_path / "sft") == three[0]
    assert folder_sha256(history.folder_of(three[0])) == three[0].sha256


def test_a_full_disk_ends_a_promotion(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a record would name an adapter of which there is no copy."""
    source = adapter(tmp_path / "sft", "weights")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        history.keep("sft", source)
    assert not list((history.folder / "adapters").iterdir())


def test_an_altered_copy_is_refused(history: History, three: list[PromotedAdapter]) -> None:
    promote(history, three[0])
    (history.folder_of(three[0]) / "adapter_model.safetensors").write_text("other weights")
    with pytest.raises(DamagedFile, match=r"The copy of the promoted adapter sft@[0-9a-f]{12} in .* altered"):
        history.folder_of(three[0])


def test_a_damaged_record_is_refused_with_its_path(history: History, three: list[PromotedAdapter]) -> None:
    promote(history, three[0])
    (history.folder / "000001.json").write_text('{"number": 1')
    with pytest.raises(DamagedFile, match=r"000001\.json cannot be read"):
        history.current()


def test_an_interrupted_write_is_no_record(history: History, three: list[PromotedAdapter]) -> None:
    (history.folder / ".0123.unfinished").write_text('{"number": 1')
    assert current_of(history.records()) is None
    promote(history, three[0])
    assert history.current() == three[0]

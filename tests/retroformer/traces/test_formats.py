"""Tests of formats of traces that installed packages offer."""

from pathlib import Path

import pytest

from retroformer.errors import ConfigError, MissingInput
from retroformer.traces.formats import format_names, trace_format


def install(site: Path, package: str, point: str) -> None:
    record = site / f"{package}-1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(f"[retroformer.traces]\n{point}\n")


def test_an_installed_package_offers_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "diaries", "diary = diary_of_others:read")
    (tmp_path / "diary_of_others.py").write_text("def read(path, score):\n    yield from ()\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "diary" in format_names()
    assert list(trace_format("diary")(tmp_path, None)) == []


def test_an_unknown_format_is_answered_with_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "diaries", "diary = diary_of_others:read")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"no trace format 'dairy': choose one of .*diary"):
        trace_format("dairy")


def test_a_format_that_cannot_be_imported_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "diaries", "diary = no_such_module:read")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingInput, match=r"'diary' of the package diaries cannot be imported.*no_such_module"):
        trace_format("diary")


@pytest.mark.parametrize(
    ("text", "cause"), [("1 / 0", "ZeroDivisionError: division by zero"), ("exit(0)", "SystemExit")]
)
def test_a_format_that_raises_when_it_is_imported_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, cause: str
) -> None:
    install(tmp_path, "diaries", "diary = faulty_diary:read")
    (tmp_path / "faulty_diary.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingInput, match=f"'diary' of the package diaries cannot be imported: {cause}"):
        trace_format("diary")


def test_two_packages_with_one_format_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "diaries", "diary = one:read")
    install(tmp_path, "journals", "diary = other:read")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="The packages diaries and journals both have a trace format 'diary'"):
        trace_format("diary")

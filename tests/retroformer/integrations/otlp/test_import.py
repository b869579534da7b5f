"""Tests of `import --format otlp`: traces become facts of a run, all or none."""

import json
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.proto")

from retroformer.__main__ import main
from retroformer.cases.case import Case, CaseAttempt, CaseTask
from retroformer.cases.import_cases import store_cases
from retroformer.config.file import load
from retroformer.errors import ConfigError, MissingInput
from retroformer.run.store import open_store
from tests.support import spans
from tests.support.killing import after_cpu_seconds, start_and_kill
from tests.support.protobuf import as_protobuf

CONVENTIONS = {"openinference": spans.openinference, "gen_ai": spans.gen_ai}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(f"run: mine\nstore: sqlite:///{tmp_path}/mine.db\nenvironment: {{name: agent}}\n")
    return path


def exported(traces: int, convention: str) -> list[spans.Json]:
    """Return requests with attempts: of five, two are rated pairs of which one fails again, and one is alone."""
    scores = [(0.0, ""), (1.0, "Search."), (0.0, ""), (0.5, "Search."), (0.0, "")]
    requests = []
    for number in range(traces):
        story, place = divmod(number, 5)
        score, advice = scores[place]
        facts = {"task_id": f"task-{story}-{place // 2}", "score": score} | ({"advice": advice} if advice else {})
        call = CONVENTIONS[convention](f"Answer {number}.")
        requests.append(spans.request(spans.attempt(number + 1, call, **facts)))
    return requests


def imported(config: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> spans.Json:
    """Import traces and return the summary."""
    main(["import", str(config), str(path), "--format", "otlp", "--json"])
    summary: spans.Json = json.loads(capsys.readouterr().out.splitlines()[-1])
    return summary


def stored(config: Path) -> tuple[int, int, list[float]]:
    """Return the numbers of attempts and of advice in the store, and the ratings."""
    with closing(open_store(load(config, []))) as store:
        ratings = [after - before for *_, before, after, _ in store.rating_rows("collect")]
        return store.arm_counts()["collect"].attempts, store.arm_counts()["collect"].advice, ratings


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_thousand_traces_become_ratings_and_failures_that_wait(
    config: Path, convention: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spans.write_lines(config.parent / "traces.jsonl", exported(1000, convention))
    summary = imported(config, path, capsys)
    assert summary | {"new_facts": 0} == {"cases": 800, "rated": 400, "failures": 400, "new_facts": 0, "skipped": {}}
    attempts, advice, ratings = stored(config)
    assert advice == 400
    assert sorted(ratings) == [0.5] * 200 + [1.0] * 200
    again = imported(config, path, capsys)
    assert again == summary | {"new_facts": 0}
    assert stored(config)[:2] == (attempts, 400)


def test_a_rating_is_stored_once_if_an_earlier_attempt_arrives_later(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [(0.0, {}), (0.5, {}), (1.0, {"advice": "Search."})]
    requests = [
        spans.request(spans.attempt(1 + number, spans.gen_ai(f"Answer {number}."), task_id="a", score=score, **facts))
        for number, (score, facts) in enumerate(scores)
    ]
    imported(config, spans.write_lines(config.parent / "late.jsonl", requests[1:]), capsys)
    assert stored(config) == (2, 1, [0.5])
    imported(config, spans.write_lines(config.parent / "traces.jsonl", requests), capsys)
    assert stored(config) == (3, 1, [0.5])


def test_a_run_of_another_source_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(task=CaseTask(id="a", input="Do a."), attempt=CaseAttempt(score=0, output="No."))
    store_cases(load(config, []), lambda: [case], source="inspect")
    path = spans.write_lines(config.parent / "traces.jsonl", exported(5, "gen_ai"))
    with pytest.raises(ConfigError, match="source"):
        imported(config, path, capsys)


def test_a_file_without_an_attempt_says_what_it_has(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unrated = [spans.request(spans.attempt(trace, spans.gen_ai("No."))) for trace in (1, 2)]
    path = spans.write_lines(config.parent / "traces.jsonl", unrated)
    with pytest.raises(MissingInput, match=r"no attempt to learn from \(skipped 2 traces without a score\)"):
        imported(config, path, capsys)


def test_one_malformed_trace_leaves_the_store_untouched(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests = exported(300, "gen_ai")
    requests[299]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"][1] = spans.attribute(
        "retroformer.score", 7.0
    )
    path = spans.write_lines(config.parent / "traces.jsonl", requests)
    with pytest.raises(MissingInput, match=r"Line 300 of .*spans\[0\].attributes\['retroformer.score'\] is 7.0"):
        imported(config, path, capsys)
    assert not (config.parent / "mine.db").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--format", "oltp"], "There is no format 'oltp': choose one of cases, inspect, otlp, parquet, "),
        (["--format", "otlp"], "There is no file or folder "),
    ],
)
def test_a_wrong_format_or_path_is_one_sentence(config: Path, words: list[str], sentence: str) -> None:
    with pytest.raises((ConfigError, MissingInput)) as refused:
        main(["import", str(config), str(config.parent / "none.jsonl"), *words])
    assert str(refused.value).startswith(sentence)


def test_a_score_without_a_format_is_refused(config: Path) -> None:
    with pytest.raises(ConfigError, match="--score right: a case has one score"):
        main(["import", str(config), "cases.jsonl", "--score", "right"])


def test_protobuf_of_an_exporter_gives_the_same_cases(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests = [as_protobuf(request) for request in exported(1000, "openinference")]
    framed = b"".join(len(request).to_bytes(4) + request for request in requests)
    (config.parent / "traces.pb").write_bytes(framed)
    summary = imported(config, config.parent / "traces.pb", capsys)
    assert (summary["cases"], summary["rated"], summary["failures"]) == (800, 400, 400)


@pytest.mark.slow
def test_an_import_that_is_killed_stores_all_or_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = spans.write_lines(config.parent / "traces.jsonl", exported(1000, "openinference"))
    log = config.parent / "mine.db-wal"
    moments = [after_cpu_seconds(seconds) for seconds in (0.6, 1.0, 1.4)]
    moments += [lambda _, size=size: log.exists() and log.stat().st_size > size for size in (0, 10**5, 10**6)]
    kept, killed = list[int](), 0
    for moment in moments:
        for file in config.parent.glob("mine.db*"):
            file.unlink()
        words = ["import", str(config), str(path), "--format", "otlp"]
        killed += start_and_kill(config.parent, "retroformer", words, moment) is None
        kept.append(stored(config)[1])
        imported(config, path, capsys)
        assert stored(config)[1] == 400
    assert killed >= 4
    assert set(kept) <= {0, 400}, kept

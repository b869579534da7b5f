"""Tests of `retroformer show`: the list, one story, JSON, what it refuses, and that it changes nothing."""

import hashlib
import json
from contextlib import closing
from pathlib import Path

import pytest

from retroformer.__main__ import main
from retroformer.coach.stories import show
from retroformer.coach.stories.runs import OpenRun
from retroformer.errors import MissingInput, StoreError
from retroformer.method.records import Key, Usage
from retroformer.run.arm_names import COLLECT
from retroformer.run.store import NewInvalid, NewReflection, NewTrajectory, Store
from tests.support.stories import DOOR, EVAL, advice, attempt, write_run

CONFIG = "run: doors\nenvironment: {name: alfworld, source: generated}\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run, below the folder where commands run."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "doors"
    folder.mkdir(parents=True)
    write_run(folder)
    return folder


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["show", *words])
    return capsys.readouterr().out


@pytest.mark.parametrize("named", ["runs/doors", "runs/doors/experience.db", "doors.yaml"])
def test_a_run_is_named_by_its_folder_its_store_or_its_config(
    named: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("doors.yaml").write_text(CONFIG)
    lines = shown(capsys, named).splitlines()
    assert lines[0] == "doors, arm collect"
    assert lines[2].split() == ["0", "0.5", "+0.5", "0", "5", "trial", "2", "door-1"]
    assert lines[4] == "doors, arm eval/trained"
    assert lines[7].split() == ["1", "1", "-", "-", "1", "trial", "0", "door-2"]


@pytest.mark.parametrize("name", ["50% done", "why?", "a%20b", "#1"])
def test_a_run_may_have_marks_of_urls_in_its_name(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.rename(run.parent / name)
    for named in (f"runs/{name}", f"runs/{name}/experience.db"):
        assert shown(capsys, named).startswith("doors, arm collect\n")


def test_a_story_shows_attempt_advice_retry_and_rating_and_marks_the_first_difference(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, "runs/doors", "--task", "door-1", "--arm", COLLECT)
    assert "== Trial 0: failed, return 0\n" in text
    assert "== Trial 1, candidate 1, accepted: failed, return 0.5, rating +0.5\n" in text
    assert "   advice of sft: Look for a key.\n" in text
    assert "   1 knock\n     | You knock.\n>  2 look\n     | You look.\n   3 wait\n" in text
    assert "advice of sft [truncated, same steps]: Wait longer." in text
    assert "== Trial 1, candidate 2: not tried yet\n" in text
    assert "== Trial 2, candidate 0, accepted: solved, return 0.5 (mean of 2), rating 0\n" in text
    assert "   invalid: EndpointFailure: the server answered 500\n" in text
    assert text.count("A door.") == 1


def test_an_arm_has_its_name_in_the_report_and_is_shown_in_all_versions(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = f"{EVAL}@0123456789ab"
    with closing(Store(f"sqlite:///{run}/experience.db", "doors")) as store:
        store.declare(again, {})
        store.add([NewTrajectory(Key(arm=again, task_id="door-1"), attempt("knock"))])
    for asked in ("trained", EVAL):
        lines = shown(capsys, "runs/doors", "--task", "door-1", "--arm", asked, "--json").splitlines()
        assert [json.loads(line)["arm"] for line in lines] == [EVAL, again]


def test_an_at_sign_in_an_arms_own_name_begins_no_version(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = f"{EVAL}@night"
    versions = [own, f"{own}@0123456789ab"]
    with closing(Store(f"sqlite:///{run}/experience.db", "doors")) as store:
        for arm in versions:
            store.declare(arm, {})
            store.add([NewTrajectory(Key(arm=arm, task_id="door-1"), attempt("knock"))])
    for asked, arms in (("trained", [EVAL]), ("trained@night", versions)):
        lines = shown(capsys, "runs/doors", "--task", "door-1", "--arm", asked, "--json").splitlines()
        assert [json.loads(line)["arm"] for line in lines] == arms


def test_json_holds_the_whole_story(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "runs/doors", "--task", "door-1", "--json").splitlines()
    collected, trained = (json.loads(line) for line in lines)
    assert (collected["arm"], trained["arm"]) == (COLLECT, EVAL)
    assert collected["chain"] == ["0.0", "1.1", "2.0"]
    last = collected["turns"][-1]
    assert (last["previous"], last["rating"], len(last["attempts"])) == ("1.1", 0.0, 2)
    assert last["advice"]["text"] == "look for  a KEY"
    listed = [json.loads(line) for line in shown(capsys, "runs/doors", "--json").splitlines()]
    assert [(line["arm"], line["task_id"], line["solved_at"]) for line in listed] == [
        (COLLECT, "door-1", 2),
        (EVAL, "door-1", 2),
        (EVAL, "door-2", 0),
    ]


def test_nothing_in_the_run_is_changed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def contents() -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(run.iterdir())
            if path.suffix != ".db-shm"
        }

    before = contents()
    shown(capsys, "runs/doors", "--task", "door-1")
    assert {name: digest for name, digest in contents().items() if name in before} == before


def test_a_store_open_for_reading_refuses_to_write(run: Path) -> None:
    with (
        closing(Store(f"sqlite:///{run}/experience.db", "doors", read_only=True)) as store,
        pytest.raises(StoreError, match="readonly"),
    ):
        store.add([NewTrajectory(Key(arm=COLLECT, task_id="door-5"), attempt("knock"))])


def test_text_of_a_model_cannot_move_the_cursor_or_turn_the_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = DOOR.model_copy(update={"id": "door-7\x1b[2J"})
    key = Key(arm=COLLECT, task_id=task.id)
    with closing(Store(f"sqlite:///{run}/experience.db", "doors")) as store:
        store.declare(COLLECT, {"loop": {"memory": 3}})
        store.add(
            [
                NewTrajectory(key, attempt("open\x1b]0;title\x07", task=task)),
                NewReflection(key.model_copy(update={"trial": 1}), 0, advice("Go \u202etfel\x9b31m.\r\nNow.")),
            ]
        )
    text = shown(capsys, "runs/doors", "--task", task.id) + shown(capsys, "runs/doors")
    assert "open\\u001b]0;title\\u0007" in text
    assert "Go \\u202etfel\\u009b31m.\n" in text
    assert "door-7\\u001b[2J" in text
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["runs/nowhere"], "runs/nowhere"),
        (["runs/doors", "run=x"], "run=x replaces an entry of a config, but runs/doors/experience.db is a store"),
        (["runs/doors", "--task", "door-9"], "No story of the task 'door-9': without --task, all are listed."),
        (["runs/doors", "--arm", "eval/x"], "There is no arm 'eval/x': choose one of collect, eval/trained."),
        (["other.yaml"], "The run 'other' has no facts in runs/other yet: run `retroformer collect` first."),
    ],
)
def test_what_is_not_there_gets_one_sentence(words: list[str], sentence: str, run: Path) -> None:
    Path("other.yaml").write_text(CONFIG.replace("doors", "other"))
    with pytest.raises(MissingInput) as refused:
        main(["show", *words])
    assert sentence in str(refused.value)
    assert not Path("runs/other").exists()
    assert not Path("runs/nowhere").exists()


def test_a_run_of_invalid_attempts_only_shows_the_last_cause(tmp_path: Path) -> None:
    with closing(Store(f"sqlite:///{tmp_path}/experience.db", "doors")) as store:
        store.declare(COLLECT, {})
        store.add([NewInvalid(Key(arm=COLLECT, task_id="door-1"), "ValueError: score is 7", Usage())])
        run = OpenRun(store, tmp_path)
        with pytest.raises(MissingInput, match=r"all were invalid\. The cause of the last one: ValueError: score is 7"):
            list(show.show_lines([run], None, None, as_json=False))

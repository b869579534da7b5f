"""Tests of the pages: what they show of a run, and what they answer to a wrong address."""

import re
from contextlib import closing
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from eval.view.site import Site
from retroformer.method.records import ChatMessage, ContentPart, FunctionCall, Key, ToolCall
from retroformer.run.arm_names import GATE_FIRST_TRIAL, gate_arm
from retroformer.run.stage_metrics import METRICS
from retroformer.run.store import NewTrajectory, Store
from tests.support.stories import DOOR, EVAL, attempt

STORY = {"run": "doors", "arm": "collect", "task": "door-1"}


def text_of(html: str) -> str:
    """Return the text of a page's main part, with single spaces."""
    (main,) = re.findall(r"<main.*?</main>", html, re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


def read(client: TestClient, path: str, **query: str) -> str:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return text_of(answer.text)


def test_the_overview_counts_stories_by_outcome_with_costs_and_causes(client: TestClient) -> None:
    shown = read(client, "/")
    # Arm, solved at once, solved later, failed, invalid attempts, attempts, advice, tokens.
    assert "collect 0 1 0 1 5 4 215" in shown
    assert f"{EVAL} 1 1 0 0 2 2 94" in shown
    assert "1 \N{MULTIPLICATION SIGN} EndpointFailure: the server answered 500" in shown


def test_the_overview_lists_finished_stages_and_those_with_checkpoints_only(
    client: TestClient, run_folder: Path
) -> None:
    for name in ("sft", "checkpoints/sft-0123456789ab", "checkpoints/ppo-0123456789ab"):
        (run_folder / name).mkdir(parents=True)
    (run_folder / "sft" / METRICS).write_text("{}")
    shown = read(client, "/")
    assert "sft , finished, last changed" in shown
    assert "ppo , unfinished, last changed" in shown
    assert "sft , unfinished" not in shown


def test_a_retry_of_the_gate_is_no_success_at_once(client: TestClient, site: Site, run_folder: Path) -> None:
    with closing(Store(f"sqlite:///{run_folder}/experience.db", "doors")) as store:
        for arm, trial, solved in ((GATE_FIRST_TRIAL, 0, False), (gate_arm("0123"), 1, True)):
            store.declare(arm, {})
            store.add([NewTrajectory(Key(arm=arm, task_id=DOOR.id, trial=trial), attempt("open", solved=solved))])
    site.index.update()
    assert "gate/0123 0 1 0 0 1 0" in read(client, "/")
    assert "Trial 0 failed return 0" in read(client, "/story", run="doors", arm="gate/0123", task=DOOR.id)


def test_the_table_has_a_row_for_each_story(client: TestClient) -> None:
    shown = read(client, "/stories")
    assert "3 stories" in shown
    assert "door-1 truncated copy repeated plan same steps collect solved, trial 2 5 0 0.5 +0.5 0" in shown


@pytest.mark.parametrize(
    ("query", "stories"),
    [
        ({"arm": EVAL}, 2),
        ({"outcome": "solved at once"}, 1),
        ({"sign": "positive"}, 2),
        ({"sign": "negative"}, 0),
        ({"sign": "none"}, 1),
        ({"flag": "repeated plan"}, 1),
        ({"q": "look KEY"}, 1),
        ({"q": "pull"}, 1),
        ({"q": '") OR 1 --'}, 0),
        ({"q": "door"}, 3),
        ({"run": "nobody"}, 0),
        ({"page": "99"}, 3),
        ({"page": "-1", "sort": "drop table"}, 3),
    ],
)
def test_stories_are_filtered_and_searched(query: dict[str, str], stories: int, client: TestClient) -> None:
    shown = read(client, "/stories", **query)
    assert f"{stories} stor" in shown
    assert ("No story fits" in shown) is (stories == 0)


def test_stories_are_sorted_by_a_column(client: TestClient) -> None:
    def order(sort: str) -> list[str]:
        html = client.get("/stories", params={"sort": sort}).text
        return re.findall(r'class="story" href="story\?run=doors&amp;arm=([a-z%2F]+)', html)

    assert order("best") == ["eval%2Ftrained", "collect", "eval%2Ftrained"]
    assert order("attempts")[0] == "collect"


def test_a_story_shows_the_way_of_the_method_side_by_side(client: TestClient) -> None:
    shown = read(client, "/story", **STORY)
    assert "All 5 attempts and pieces of advice" in shown
    assert re.search(r"Trial 1, candidate 1 failed return 0.5 rating \+0.5 Advice of sft Look for a key.", shown)
    assert "First step that differs 2 look You look." in shown
    assert "The actor read 2 pieces of advice Look for a key. look for a KEY" in shown
    assert "Wait longer." not in shown


def test_another_candidate_is_shown_by_its_place(client: TestClient) -> None:
    shown = read(client, "/story", **STORY, at="1.0")
    assert "Wait longer." in shown
    assert "Look for a key." not in shown


def test_a_step_has_an_address(client: TestClient) -> None:
    html = client.get("/story", params=STORY).text
    assert re.search(r'<li id="t1.1-s2" tabindex="-1" class="differs">', html)
    assert 'href="#t1.1-s2"' in html


def test_the_prompt_of_advice_is_shown_with_its_tokens(client: TestClient) -> None:
    shown = read(client, "/prompt", **STORY, at="1.0")
    assert "sft; 30 prompt and 20 of at most 20 completion tokens" in shown
    assert "user The door stayed shut." in shown


def test_neighbours_follow_the_list_from_which_the_reader_came(client: TestClient) -> None:
    first = client.get("/story", params={**STORY, "list_sort": "attempts"}).text
    # By attempts: 5 of door-1 in collect, 3 of door-1 in eval/trained, 1 of door-2.
    assert 'rel="prev"' not in first
    assert 'rel="next" href="story?run=doors&amp;arm=eval%2Ftrained&amp;task=door-1&amp;list_sort=attempts"' in first


def test_a_conversation_and_its_tool_calls_are_folded(client: TestClient, run_folder: Path) -> None:
    call = ToolCall(id="1", function=FunctionCall(name="open_door", arguments='{"door": 7}'))
    messages = (
        ChatMessage(role="assistant", content=None, tool_calls=(call,)),
        ChatMessage(role="tool", content=(ContentPart(type="text", text="It opens."), ContentPart(type="image_url"))),
    )
    task = DOOR.model_copy(update={"id": "door-8"})
    with closing(Store(f"sqlite:///{run_folder}/experience.db", "doors")) as store:
        store.declare("collect", {"loop": {"memory": 3}})
        played = attempt("open", task=task).model_copy(update={"messages": messages})
        store.add([NewTrajectory(Key(arm="collect", task_id=task.id), played)])
    shown = read(client, "/story", **{**STORY, "task": "door-8"})
    assert (
        'Conversation of trial 0: 2 messages assistant Calls open_door {"door": 7} tool It opens. (image_url)' in shown
    )


@pytest.mark.parametrize(
    ("path", "query", "sentence"),
    [
        ("/nowhere", {}, "There is no such page."),
        ("/story", {**STORY, "task": "door-9"}, "There is no story of the task 'door-9' in the arm 'collect'."),
        ("/story", {**STORY, "run": "x"}, "There is no run 'x' here."),
        ("/story", {**STORY, "at": "7.7"}, "The story has no attempt '7.7'."),
        ("/prompt", {**STORY, "at": "0.0"}, "There is no such advice in this story."),
    ],
)
def test_a_wrong_address_gets_a_page_that_says_so(
    path: str, query: dict[str, str], sentence: str, client: TestClient
) -> None:
    answer = client.get(path, params=query)
    assert answer.status_code == 404
    assert sentence in text_of(answer.text)

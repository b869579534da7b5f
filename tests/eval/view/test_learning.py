"""Tests of what the page on learning shows: success by attempt, ratings, training curves and wording."""

import json
import re
from contextlib import closing
from pathlib import Path

from starlette.testclient import TestClient

from eval.view.index import Index
from eval.view.pages.learning import advice_authors, typical_words
from eval.view.site import Site
from retroformer.coach.stories.runs import open_runs
from retroformer.method.records import Key
from retroformer.run.store import NewReflection, Store
from tests.eval.view.test_pages import read
from tests.support.stories import advice


def test_success_by_attempt_and_ratings_are_given_as_numbers_too(client: TestClient) -> None:
    shown = read(client, "/learning")
    # Two tasks of the trained arm: one solved at once, the other at trial 2.
    assert "eval/trained 0.500 0.500 1.000" in shown
    assert "collect 0.000 0.000 1.000" in shown
    # Ratings in collect: 0, .5 and 0 again, as the mean of two repeats after .5 is .5.
    assert "Ratings in collect" in shown
    assert "0 2 +0.5 1" in shown


def test_authors_are_compared_by_length_rating_and_flags(client: TestClient) -> None:
    shown = read(client, "/learning")
    # Words: 2, 4, 4 and 4; ratings 0, .5 and 0; one of four truncated, copied, repeated, and one with the same steps.
    assert "collect, sft 4 3.5 +0.167 33% 25% 25% 25% 25%" in shown


def test_training_curves_come_from_the_folders_of_the_stages(client: TestClient, run_folder: Path) -> None:
    metrics = {
        "sft": {"stage": "sft", "losses": [2.0, 1.0, 0.5]},
        "ppo": {"stage": "ppo", "history": [{"score": 0.1, "kl": 0.0}, {"score": 0.4, "kl": 0.2}]},
        "reward": {"stage": "reward", "held_out_pairs": 40, "held_out_accuracy": 0.65, "held_out_brier": 0.22},
        "damaged": {"stage": 7},
    }
    for stage, measures in metrics.items():
        (run_folder / stage).mkdir()
        (run_folder / stage / "metrics.json").write_text(json.dumps(measures))
    shown = read(client, "/learning")
    assert "SFT loss 1 2.000 0.500" in shown
    assert "PPO score 1 0.100 0.400" in shown
    assert re.search(r"reward - 40 0.65 - - - 0.22", shown)
    assert read(client, "/").count("finished") == 4


def test_typical_words_are_those_that_tell_two_authors_apart(tmp_path: Path) -> None:
    with closing(Store(f"sqlite:///{tmp_path}/experience.db", "words")) as store:
        for arm, text in (("collect", "look again number{}"), ("eval/sft", "open the drawer again")):
            for number in range(40):
                key = Key(arm=arm, task_id=f"{number}", trial=1)
                store.add([NewReflection(key, 0, advice(text.format(number)))])
    with open_runs(tmp_path) as (run,):
        index = Index([run], tmp_path / "index.db")
        index.update()
        before, after = advice_authors(index, "words")
        assert {word for word, _, _ in typical_words(index, after, before)} == {"open", "the", "drawer"}
        assert typical_words(index, before, after)[0] == ("look", 40, 0)
    assert [after[name] for name in ("pieces", "rated", "words", "copy")] == [40, 0, 160, 0]


def test_words_of_a_story_that_is_indexed_again_count_once(site: Site, run_folder: Path) -> None:
    def counts() -> dict[str, int]:
        query = "SELECT word, pieces FROM author_word JOIN author ON id = author WHERE arm = 'collect' AND pieces > 0"
        with site.index.connect() as connection:
            return dict(connection.execute(query).fetchall())

    before = counts()
    with closing(Store(f"sqlite:///{run_folder}/experience.db", "doors")) as store:
        store.declare("collect", {"loop": {"memory": 3}})
        store.add([NewReflection(Key(arm="collect", task_id="door-1", trial=3), 0, advice("key by key"))])
    assert site.index.update() == 1
    assert before["key"] == 2
    assert counts() == {**before, "key": 3, "by": 1}

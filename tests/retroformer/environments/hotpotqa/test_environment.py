"""Tests of HotPotQA over six invented pages, and over the real ones if present."""

import asyncio
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.environments import hotpotqa
from retroformer.environments.hotpotqa.data import Folder, context_pages, question_id
from retroformer.environments.hotpotqa.docstore import Docstore, EncyclopediaPage, build_docstore, page
from retroformer.environments.hotpotqa.environment import (
    INVALID_ACTION,
    NO_MORE_RESULTS,
    NO_PAGE,
    Hotpotqa,
    HotpotqaEnvironment,
)
from retroformer.environments.pool import EnvironmentPool
from retroformer.environments.registry import taskset
from retroformer.environments.tasksets import EPISODE_OVER
from retroformer.errors import EnvironmentFailure, MissingInput, UnknownTask
from retroformer.method.records import Task
from tests.support.hotpotqa import SHARED, index_of_the_data
from tests.support.runs import ROOT

PAGES = [
    ("Harrow (film)", ["Harrow is a 1971 film by Ada Lind.", " It was shot in Norway.", " Lind also wrote it."]),
    ("Ada Lind", ["Ada Lind (1931 - 2004) was a director.", " She was born in Bergen.", "She died in Bergen, too."]),
    ("Bergen", ["Bergen is a city in Norway."]),
    ("Bergen (album)", ["Bergen is an album by Odd Trio, released in 1988."]),
    ("&amp;Co", ["&Co is a band from Oslo."]),
    ("The Lamp", ["The Lamp is a novel about a lighthouse keeper and his lamps."]),
]
QUESTIONS = [
    {"id": "b", "question": "Where was the director of Harrow born?", "answer": "Bergen, Norway", "level": "hard"},
    {"id": "a", "question": "Is Bergen  in Norway? ", "answer": "yes"},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    (data / "questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)) + "\n")
    with lzma.open(data / "docstore.jsonl.xz", "wt") as lines:
        lines.writelines(json.dumps({"title": title, "sentences": text}) + "\n" for title, text in PAGES)
    (data / "splits.json").write_text(json.dumps({"note": "invented", "one": ["a"], "gone": ["a", "z"]}))
    return data


def make(folder: Path, **knobs: object) -> hotpotqa.HotpotqaTaskset:
    return hotpotqa.taskset(Hotpotqa.model_validate({"name": "hotpotqa", "data": folder, "split": "all"} | knobs))


def ask(folder: Path, task_id: str = "b", **knobs: object) -> HotpotqaEnvironment:
    environment = make(folder, **knobs).environment()
    environment.reset(Task(id=task_id, environment="hotpotqa", split="all"))
    return environment


def observed(environment: HotpotqaEnvironment, *actions: str) -> list[str]:
    return [environment.step(action).observation for action in actions]


def test_search_shows_the_whole_first_paragraph_or_the_first_sentences_and_lookup_reads_on(folder: Path) -> None:
    (whole,) = observed(ask(folder), "Search[Harrow (film)]")
    assert whole == "Harrow is a 1971 film by Ada Lind. It was shot in Norway. Lind also wrote it."
    seen = observed(ask(folder, sentences=2), "Search[Harrow (film)]", "Lookup[wrote]")
    assert seen == ["Harrow is a 1971 film by Ada Lind. It was shot in Norway.", "(Result 1 / 1) Lind also wrote it."]


def test_tasks_are_the_questions_of_the_split_in_its_order(folder: Path) -> None:
    assert [task.id for task in make(folder).tasks()] == ["b", "a"]
    assert [task.id for task in make(folder, split="one").tasks()] == ["a"]


def test_the_error_for_an_unknown_split_lists_the_splits(folder: Path) -> None:
    with pytest.raises(UnknownTask, match="choose one of all, gone, one, train_N, validation_N"):
        make(folder, split="test").tasks()


def test_a_split_of_other_data_is_refused(folder: Path) -> None:
    with pytest.raises(MissingInput, match="1 of the 2 questions of split 'gone'"):
        make(folder, split="gone").tasks()


def test_a_folder_without_the_data_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"Neither questions\.jsonl nor questions\.jsonl\.xz"):
        make(tmp_path).tasks()


def test_a_damaged_file_is_named(folder: Path) -> None:
    packed = folder / "docstore.jsonl.xz"
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(MissingInput, match=r"docstore\.jsonl\.xz is damaged"):
        make(folder).environment()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("questions.jsonl", '{"question": "Who?"}'),
        ("questions.jsonl", "[1]"),
        ("docstore.jsonl", '{"title": "Milhouse"}'),
        ("splits.json", "[1]"),
        ("splits.json", "[1"),
    ],
)
def test_a_file_of_another_shape_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / "questions.jsonl").write_text('{"id": "a", "question": "Who?", "answer": "She"}')
    (tmp_path / "docstore.jsonl").write_text('{"title": "She", "sentences": ["She was."]}')
    (tmp_path / name).write_text(content)
    source = Folder(tmp_path)

    def read_all() -> int:
        return len(source.split("all")) + len(list(source.pages()))

    with pytest.raises(MissingInput, match=name):
        read_all()


def test_without_a_hub_the_error_says_what_to_set(folder: Path) -> None:
    code = (
        "from retroformer.environments.hotpotqa.environment import Hotpotqa\n"
        "from retroformer.environments.registry import taskset\n"
        "from retroformer.errors import MissingInput\n"
        "try:\n    taskset(Hotpotqa(name='hotpotqa')).tasks()\nexcept MissingInput as error:\n    print(error)\n"
    )
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
    said = subprocess.run([sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("HotPotQA cannot be downloaded from the hub")
    assert "environment.data" in said.stdout


def test_the_contexts_of_the_hub_s_rows_are_pages() -> None:
    context = {"title": ["A", "B &amp; C"], "sentences": [["A is.", " It was."], ["B and C."]]}
    assert [(article.title, article.paragraph) for article in context_pages(context)] == [
        ("A", "A is. It was."),
        ("B & C", "B and C."),
    ]


def test_the_question_opens_the_episode(folder: Path) -> None:
    environment = make(folder).environment()
    opening = environment.reset(Task(id="a", environment="hotpotqa", split="all"))
    assert opening.observation == "Question: Is Bergen in Norway?"
    assert not opening.over
    assert opening.choices == ()
    with pytest.raises(UnknownTask, match="'z'"):
        environment.reset(Task(id="z", environment="hotpotqa", split="all"))


def test_a_step_before_any_question_is_a_failure_of_the_caller(folder: Path) -> None:
    with pytest.raises(EnvironmentFailure):
        make(folder).environment().step("Search[Bergen]")


def test_search_takes_the_exact_title_then_any_case_then_the_bare_title(folder: Path) -> None:
    harrow = "Harrow is a 1971 film by Ada Lind. It was shot in Norway. Lind also wrote it."
    assert observed(
        ask(folder), "Search[Bergen]", "search[ada  LIND]", "Search[harrow]", 'Search["Bergen (album)"]'
    ) == [
        "Bergen is a city in Norway.",
        "Ada Lind (1931 - 2004) was a director. She was born in Bergen. She died in Bergen, too.",
        harrow,
        "Bergen is an album by Odd Trio, released in 1988.",
    ]


def test_a_title_with_an_html_entity_is_found_in_its_plain_form(folder: Path) -> None:
    assert observed(ask(folder), "Search[&Co]") == ["&Co is a band from Oslo."]


def test_a_search_that_finds_nothing_lists_what_is_similar_best_first(folder: Path) -> None:
    # Porter stems make lamp of lamps; "the" is a stop word and finds nothing by itself.
    assert observed(ask(folder), "Search[the lamps]") == ["Could not find [the lamps]. Similar: ['The Lamp']"]
    titles = observed(ask(folder), "Search[Lind of Bergen]")[0]
    assert titles.startswith("Could not find [Lind of Bergen]. Similar: ['Ada Lind', ")
    assert observed(ask(folder), "Search[?!]") == ["Could not find [?!]. Similar: []"]


def test_a_word_in_the_title_weighs_more_than_one_in_the_text(tmp_path: Path) -> None:
    pages = [page("Stone", ["Iron iron."]), page("Iron", ["A stone."]), page("Filler", ["Nothing here."])]
    docstore = Docstore(build_docstore(pages, tmp_path / "small.sqlite"))
    assert docstore.similar("iron") == ["Iron", "Stone"]
    assert docstore.similar("iron", count=1) == ["Iron"]


def test_an_ambiguous_bare_title_is_not_guessed(tmp_path: Path) -> None:
    pages = [page("Lark (ship)", ["A ship."]), page("Lark (poem)", ["A poem."]), page("lark (Poem)", ["Another."])]
    docstore = Docstore(build_docstore(pages, tmp_path / "small.sqlite"))
    assert docstore.find("Lark") is None
    assert docstore.find("LARK (POEM)") is None
    article = docstore.find("lark (Poem)")
    assert article is not None
    assert article.paragraph == "Another."


def test_lookup_steps_through_the_sentences_of_the_last_page(folder: Path) -> None:
    assert observed(
        ask(folder, max_steps=20),
        "Lookup[Bergen]",
        "Search[Ada Lind]",
        "Lookup[bergen]",
        "Search[no such page]",
        'lookup["Bergen"]',
        "Lookup[Bergen]",
        "Lookup[director]",
        "Lookup[Bergen]",
        "Search[Ada Lind]",
        "Lookup[Bergen]",
        "Lookup[Oslo]",
    ) == [
        NO_PAGE,
        "Ada Lind (1931 - 2004) was a director. She was born in Bergen. She died in Bergen, too.",
        "(Result 1 / 2) She was born in Bergen.",
        "Could not find [no such page]. Similar: []",
        "(Result 2 / 2) She died in Bergen, too.",
        NO_MORE_RESULTS,
        "(Result 1 / 1) Ada Lind (1931 - 2004) was a director.",
        "(Result 1 / 2) She was born in Bergen.",
        "Ada Lind (1931 - 2004) was a director. She was born in Bergen. She died in Bergen, too.",
        "(Result 1 / 2) She was born in Bergen.",
        NO_MORE_RESULTS,
    ]


def test_a_right_answer_terminates_with_success(folder: Path) -> None:
    answered = ask(folder).step("Finish[bergen Norway]")
    assert (answered.reward, answered.terminated, answered.truncated, answered.success) == (1, True, False, True)


def test_a_partial_answer_earns_f1_but_is_not_a_success(folder: Path) -> None:
    answered = ask(folder).step("Finish[the city of Bergen]")
    # "city bergen" against "bergen norway": 2 * 1 / (2 + 2).
    assert answered.reward == pytest.approx(0.5)
    assert answered.terminated
    assert not answered.success
    assert ask(folder, reward="em").step("Finish[Bergen]").reward == 0


def test_thoughts_and_nonsense_cost_a_step_and_the_last_step_truncates(folder: Path) -> None:
    environment = ask(folder, max_steps=3)
    assert observed(environment, "think: Bergen?", "Compare[a, b]") == ["OK.", INVALID_ACTION]
    last = environment.step("Search[Bergen]")
    assert (last.truncated, last.terminated, last.reward) == (True, False, 0)
    after = environment.step("Finish[Bergen, Norway]")
    assert (after.observation, after.reward, after.success, after.truncated) == (EPISODE_OVER, 0, False, True)


def test_an_answer_at_the_last_step_terminates_instead(folder: Path) -> None:
    environment = ask(folder, max_steps=1)
    answered = environment.step("Finish[Bergen, Norway]")
    assert (answered.terminated, answered.truncated) == (True, False)


def test_a_second_episode_starts_from_scratch(folder: Path) -> None:
    environment = ask(folder)
    observed(environment, "Search[Bergen]", "Finish[x]")
    environment.reset(Task(id="a", environment="hotpotqa", split="all"))
    assert observed(environment, "Lookup[Bergen]") == [NO_PAGE]


def test_worker_processes_share_one_index(folder: Path, tmp_path: Path) -> None:
    async def both() -> list[str]:
        section = Hotpotqa(name="hotpotqa", data=folder, split="all")
        async with EnvironmentPool(section, 0, 2, 60) as pool:

            async def first_answer(task: Task) -> str:
                async with pool.episode(task) as episode:
                    await episode.reset()
                    return (await episode.step("Search[Bergen]")).observation

            return await asyncio.gather(*map(first_answer, make(folder).tasks()))

    assert asyncio.run(both()) == ["Bergen is a city in Norway."] * 2
    made = list((tmp_path / "cache" / "hotpotqa").glob("*.sqlite"))
    assert len(made) == 1


def test_processes_that_build_at_once_leave_one_complete_file(tmp_path: Path) -> None:
    path = tmp_path / "shared" / "docstore.sqlite"
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from retroformer.environments.hotpotqa.docstore import Docstore, build_docstore, page\n"
        "path = Path(sys.argv[1])\n"
        "def pages():\n    print('built')\n"
        "    yield from (page(f'Page {n}', [f'It has the number {n}.']) for n in range(3000))\n"
        "print(Docstore(build_docstore(pages(), path)).find('Page 2999').paragraph)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [builder.communicate()[0] for builder in builders]
    assert all("It has the number 2999." in words for words in said)
    assert sum("built" in words for words in said) == 1
    assert not list(path.parent.glob(".*.unfinished"))


def test_a_build_that_fails_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "docstore.sqlite"

    def pages() -> Iterator[EncyclopediaPage]:
        yield page("A", ["A."])
        raise MissingInput("The second page is damaged.")

    with pytest.raises(MissingInput):
        build_docstore(pages(), path)
    assert [file.suffix for file in tmp_path.iterdir()] == [".lock"]
    assert Docstore(build_docstore([page("A", ["A."])], path)).find("A") is not None


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_of_the_data(tmp_path_factory.getbasetemp())


def test_the_released_validation_split_has_its_hundred_questions(real: Path) -> None:
    tasks = make(SHARED, split="validation_100").tasks()
    assert len({task.id for task in tasks}) == 100
    assert tasks[0].id == "5a7613c15542994ccc9186bf"


def test_ids_of_unknown_questions_are_the_data_s_own(real: Path) -> None:
    ids = make(SHARED).ids_by_question()
    question = (
        "Who co-created this American variety television series about children demonstrating talents and engaging "
    )
    question += 'in conversation broadcast by NBC along with the host of "Family Feud?"'
    assert question_id(question) == "q-ac2d92f2e7668521b21a"
    assert question_id(question) in ids.values()


def test_real_gold_pages_are_found_by_title_and_by_search_words(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETROFORMER_CACHE", str(real))
    file = next((real / "hotpotqa").glob("docstore-*.sqlite"))
    docstore = Docstore(file)
    with lzma.open(SHARED / "questions.jsonl.xz", "rt") as lines:
        rows = [json.loads(line) for _, line in zip(range(300), lines, strict=False)]
    gold = sorted({title for row in rows if row["solvable"] for title, _ in row["supporting_facts"]})
    titles = [page(title, []).title for title in gold]
    assert all(docstore.find(title) is not None for title in titles)
    top = [docstore.similar(title) for title in titles]
    assert sum(title in results for title, results in zip(titles, top, strict=True)) / len(titles) > 0.97


def test_reflexion_s_config_shows_the_first_five_sentences_of_a_real_page(
    real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROFORMER_CACHE", str(real))
    section = load(ROOT / "configs/paper/reflexion-hotpotqa-react.yaml", [f"environment.data={SHARED}"]).environment
    source = taskset(section)
    environment = source.environment()
    environment.reset(source.tasks()[0])
    shown = environment.step("Search[1948 Summer Olympics medal table]").observation
    assert shown.endswith(
        "Germany and Japan remained under military occupation and had not yet formed their National "
        "Olympic Committee, and so were not invited."
    )

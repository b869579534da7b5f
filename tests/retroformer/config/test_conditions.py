"""Test that conditions depend on content, and that facts with different conditions never mix."""

import asyncio
import shutil
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from collect.rate import rate_reflections
from eval.report.report import compare_arms
from retroformer.cases.export_cases import export_cases
from retroformer.cases.import_cases import import_cases
from retroformer.config.conditions import conditions
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config, load
from retroformer.environments.registry import taskset
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import Key, Task
from retroformer.run.provenance import Provenance, ServedModel
from retroformer.run.store import open_store
from tests.support.characters import advice, attempt_at
from tests.support.endpoint import Endpoint
from tests.support.facts import add_trajectory
from tests.support.runs import HOUSEHOLD, facts, open_config, write_config
from train.data.inputs import rated

pytestmark = pytest.mark.usefixtures("workplace")

PACK = Path(str(resources.files("retroformer.method"))) / "packs" / "alfworld-default.yaml"
NOWHERE = "http://127.0.0.1:1/v1"
REACT = ("actor.kind=react", "actor.endpoint.model=actor", "loop.trials=2", "loop.actions=3", "reflector.view=full")


def experiment(folder: Path, *overrides: str) -> Experiment:
    return load(write_config(folder, NOWHERE), overrides)


def served(base: str = "b", adapter: str | None = "a", template: str = "t", **changes: Any) -> Provenance:
    """Return the provenance that an own server reports for the models `base` and `big`."""
    models = {
        name: ServedModel(base_sha256=base, adapter_sha256=adapter, chat_template_sha256=template)
        for name in ("base", "big")
    }
    measured = {"dtype": "float32", "versions": {"torch": "2.13.0", "trl": "1.16.0"}}
    return Provenance(models=models, **(measured | changes))


@pytest.mark.parametrize(
    "override",
    [
        "loop.trials=2",
        "loop.concurrency=1",
        "reflector.endpoint.base_url=http://else/v1",
        "run=other",
        "collect.tasks=1",
    ],
)
def test_conditions_ignore_how_facts_were_made(tmp_path: Path, override: str) -> None:
    assert conditions(experiment(tmp_path, override)) == conditions(experiment(tmp_path))


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "loop.memory=1",
        "reflector.view=full",
        "reflector.endpoint.extra_body={reasoning_effort: low}",
        "environment.receptacles=20",
        "actor.kind=household",
        "evaluator.kind=model",
    ],
)
def test_conditions_include_the_request(tmp_path: Path, override: str) -> None:
    assert conditions(experiment(tmp_path, override)) != conditions(experiment(tmp_path))


@pytest.mark.parametrize(
    "changed",
    [
        served(base="another base"),
        served(adapter="another adapter"),
        served(adapter=None),
        served(template="another template"),
        served(dtype="bfloat16"),
        served(quantization="nf4"),
        served(versions={"torch": "2.14.0"}),
    ],
)
def test_conditions_include_the_content_served_by_the_own_server(tmp_path: Path, changed: Provenance) -> None:
    config = load(write_own(tmp_path))
    assert conditions(config, {None: changed}) != conditions(config, {None: served()})


def test_conditions_include_the_content_that_a_server_elsewhere_reports(tmp_path: Path) -> None:
    config = load(write_own(tmp_path), ["reflector.endpoint.base_url=http://me:secret@127.0.0.1:8000/v1"])
    address = config.reflector.endpoint.base_url
    one, other = (conditions(config, {address: served(adapter=name)}) for name in ("a", "b"))
    assert one["reflector"]["endpoint"]["adapter_sha256"] == "a"
    assert one != other
    assert "adapter_sha256" not in conditions(config, {None: served()})["reflector"]["endpoint"]


def test_conditions_ignore_packages_that_do_not_affect_answers(tmp_path: Path) -> None:
    config = load(write_own(tmp_path))
    newer = served(versions={"torch": "2.13.0", "trl": "1.17.0"})
    assert conditions(config, {None: newer}) == conditions(config, {None: served()})


def write_own(folder: Path) -> Path:
    """Write the household experiment with a reflector on its own server."""
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(HOUSEHOLD))
    return path


def test_conditions_include_the_texts_of_the_pack_and_not_its_path(tmp_path: Path) -> None:
    pack = PACK
    same, edited = tmp_path / "same.yaml", tmp_path / "edited.yaml"
    same.write_text(f"# a comment\n{pack.read_text()}")
    edited.write_text(edit(pack))
    before = conditions(experiment(tmp_path, *REACT))
    assert conditions(experiment(tmp_path, *REACT, f"actor.prompts={same}")) == before
    assert conditions(experiment(tmp_path, *REACT, f"actor.prompts={edited}")) != before


def edit(pack: Path) -> str:
    """Return the pack with another instruction for the reflector."""
    words = yaml.safe_load(pack.read_text())
    return yaml.safe_dump(words | {"ask": "What now?"})


def test_conditions_include_the_pages_and_tasks_the_question_that_they_are(tmp_path: Path) -> None:
    folder, config = tmp_path / "data", tmp_path / "questions.yaml"
    folder.mkdir()
    (folder / "questions.jsonl").write_text('{"id": "1", "question": "Where?", "answer": "Paris"}\n')
    (folder / "docstore.jsonl").write_text('{"title": "Paris", "sentences": ["A town."]}\n')
    config.write_text("run: toy\nenvironment: {name: hotpotqa, split: all}\n")

    def conditions_at(data: Path) -> dict[str, Any]:
        return conditions(load(config, (f"environment.data={data}",)))

    moved = shutil.copytree(folder, tmp_path / "moved")
    assert conditions_at(Path(moved)) == conditions_at(folder)
    for name, differ in (("questions.jsonl", False), ("docstore.jsonl", True)):
        (Path(moved) / name).write_text((folder / name).read_text().replace("Paris", "Rome"))
        assert (conditions_at(Path(moved)) != conditions_at(folder)) is differ
    old, new = (load(config, (f"environment.data={data}",)) for data in (folder, moved))
    assert taskset(old.environment).tasks() != taskset(new.environment).tasks()


def collect(config: Config) -> str:
    return asyncio.run(rate_reflections(config))


def test_an_edited_prompt_pack_at_the_same_path_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    pack = tmp_path / "pack.yaml"
    shutil.copy(PACK, pack)
    with Endpoint() as server:
        words = (*REACT, f"actor.prompts={pack}", f"actor.endpoint.base_url={server.url}")
        path = write_config(tmp_path, server.url)
        collect(open_config(path, *words, "collect.tasks=2"))
        asked = len(server.requests)
        pack.write_text(edit(pack))
        with pytest.raises(ConfigError, match=r"facts made with actor.prompts_sha256='\w+', not '\w+', reflector.prom"):
            collect(open_config(path, *words, "collect.tasks=4"))
        assert len(server.requests) == asked


def test_facts_about_another_environment_are_not_imported(tmp_path: Path) -> None:
    with Endpoint() as server:
        config = open_config(write_config(tmp_path, server.url), "collect.tasks=2")
        collect(config)
        export_cases(config.experiment, tmp_path / "out.jsonl", exact=True)
    questions = tmp_path / "questions.yaml"
    questions.write_text("run: other\nenvironment: {name: hotpotqa, split: all}\n")
    with pytest.raises(
        ConfigError, match=r"case 1, origin.environment: a fact about alfworld cannot be imported into a run on"
    ):
        import_cases(load(questions), tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match=r"'collect' facts were made with environment.receptacles=8, not 20"):
        import_cases(load(config.path, ("run=other", "environment.receptacles=20")), tmp_path / "out.jsonl")
    with closing(open_store(load(config.path, ("run=other",)))) as store:
        assert store.arms() == []


def test_imported_facts_bring_their_conditions_and_other_facts_are_not_added_to_them(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        config = open_config(path, "collect.tasks=2")
        collect(config)
        export_cases(config.experiment, tmp_path / "out.jsonl", exact=True)
        import_cases(load(path, ("run=copy",)), tmp_path / "out.jsonl")
        asked = len(server.requests)
        with pytest.raises(ConfigError, match=r"facts made with loop\.memory=2, not 3"):
            collect(open_config(path, "run=copy", "loop.memory=3"))
        assert len(server.requests) == asked
        collect(open_config(path, "run=copy", "collect.tasks=6"))
        assert len(server.requests) > asked


@pytest.mark.parametrize("change", ["loop.memory=1", "environment.receptacles=20", "reflector.stop=[x]"])
def test_training_on_facts_of_other_conditions_is_refused(tmp_path: Path, change: str) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        collect(open_config(path))
        assert rated(load(path))
        assert rated(load(path, ("seed=3", "train.sft.epochs=1")))
        with pytest.raises(
            ConfigError, match=rf"'collect' facts of the run 'toy' were made with {change.split('=')[0]}"
        ):
            rated(load(path, (change,)))


def test_a_run_whose_first_command_made_nothing_takes_the_corrected_config(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        wrong = open_config(path, *REACT, f"actor.endpoint.base_url={NOWHERE}", "loop.retries=0", "loop.memory=3")
        with pytest.raises(MissingInput, match="could be played"):
            collect(wrong)
        assert collect(open_config(path))
        assert facts(open_config(path)).trajectories


def test_all_arms_are_checked_before_the_first_one_spends_anything(tmp_path: Path) -> None:
    def arms(**changes: Any) -> dict[str, Any]:
        config = HOUSEHOLD | {"eval": HOUSEHOLD["eval"] | {"arms": HOUSEHOLD["eval"]["arms"] | changes}}
        return config | {"run": "arms"}

    with Endpoint() as server:
        asyncio.run(compare_arms(open_config(write_config(tmp_path, server.url, arms()))))
        asked = len(server.requests)
        new, changed = {"kind": "model", "model": "another"}, {"kind": "placebo", "of": "no reflection"}
        config = open_config(write_config(tmp_path, server.url, arms(**{"a new arm": new, "placebo": changed})))
        with pytest.raises(ConfigError, match=r"'eval/placebo' facts made with arm.of='remote reflector', not 'no ref"):
            asyncio.run(compare_arms(config))
        assert len(server.requests) == asked


def test_training_and_import_need_no_data_of_the_environment(tmp_path: Path) -> None:
    """Training works without the data; if they are there, they are compared."""
    games = tmp_path / "games"
    game = games / "train" / "pick_and_place_simple-Mug-None-Shelf-1" / "trial_1" / "game.tw-pddl"
    game.parent.mkdir(parents=True)
    game.write_text("a game")
    there, path = tmp_path / "there.yaml", tmp_path / "elsewhere.yaml"
    there.write_text(f"run: games\nenvironment: {{name: alfworld, data: {games}}}\n")
    path.write_text("run: games\nenvironment: {name: alfworld, data: nowhere}\n")
    bound = conditions(load(there)) | {"candidates": 2, "repeats": 1}
    with closing(open_store(load(there))) as store:
        store.declare("collect", bound)
        task = Task(id="a", environment="alfworld", split="train")
        for trial in (0, 1):
            add_trajectory(store, Key(arm="collect", task_id="a", trial=trial), attempt_at(task))
        store.add_reflection(Key(arm="collect", task_id="a", trial=1), 0, advice("Look."))
    assert rated(load(path))
    export_cases(load(there), tmp_path / "out.jsonl", exact=True)
    import_cases(load(path, ("run=copy",)), tmp_path / "out.jsonl")
    game.write_text("another game")
    with pytest.raises(ConfigError, match=r"made with environment\.data_sha256\.train='"):
        rated(load(there))
    with pytest.raises(ConfigError, match=r"made with environment\.data_sha256\.train='"):
        import_cases(load(there, ("run=other",)), tmp_path / "out.jsonl")

"""Tests of the layout: the stages' folders, and which imports between them are allowed."""

import ast
import functools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from retroformer.config.file import load_domains

ROOT = Path(__file__).parents[1]
ROOMS = ("collect", "train", "serve", "eval")


def imported_names(source: str) -> set[str]:
    """Return the top-level packages that a module imports anywhere, also inside functions."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def trespasses(room: str, source: str) -> set[str]:
    """Return the stages that a module of the stage `room` imports although it may not."""
    return imported_names(source) & (set(ROOMS) - {room})


def imported_modules(path: Path, project_modules: Mapping[str, Path]) -> set[str]:
    """Return the modules of this project that a module imports, also inside functions."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imported = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            imported |= {
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in project_modules else base for alias in node.names
            }
    return imported & project_modules.keys() - {name}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Return the imported modules by module, for the package and the stages."""
    project_modules = {module_name(path): path for folder in ("retroformer", *ROOMS) for path in modules(folder)}
    return {name: imported_modules(path, project_modules) for name, path in project_modules.items()}


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return the modules that are imported when `start` is used."""
    reached, waiting = set[str](), [start]
    while waiting:
        for name in graph[waiting.pop()] - reached:
            reached.add(name)
            waiting.append(name)
    return reached


def modules(folder: str) -> list[Path]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    return paths


@pytest.mark.parametrize("room", [*ROOMS, "retroformer"])
def test_a_room_imports_retroformer_and_itself_only(room: str) -> None:
    violations = {str(path.relative_to(ROOT)): trespasses(room, path.read_text()) for path in modules(room)}
    assert not {path: names for path, names in violations.items() if names}


def test_the_layout_test_detects_a_forbidden_import() -> None:
    assert trespasses("eval", "def f():\n    import train\n") == {"train"}
    assert trespasses("eval", "from collect.rate import ARM\n") == {"collect"}


def test_there_are_no_import_cycles() -> None:
    graph = import_graph()
    assert not [name for name in graph if name in reachable(graph, name)]


def test_a_number_of_the_report_is_computed_in_its_chapter_and_in_eval_measure() -> None:
    graph = import_graph()
    shared = {"eval.report.report_input", "eval.report.files", "eval.report.training"}
    chapters = {name for name in graph["eval.report.report"] - shared if name.startswith("eval.report.")}
    elsewhere = {name: {used for used in graph[name] if used.startswith("eval.report.")} for name in chapters}
    assert len(chapters) > 6
    assert not {name: used - shared for name, used in elsewhere.items() if used - shared}


def test_an_environment_is_imported_only_by_itself() -> None:
    own = "retroformer.environments."
    folders = {f"{own}{path.name}" for path in (ROOT / "retroformer/environments").iterdir() if path.is_dir()}
    intruders = {
        (name, imported)
        for name, names in import_graph().items()
        for imported in names
        for folder in folders
        if f"{imported}.".startswith(f"{folder}.") and not f"{name}.".startswith(f"{folder}.")
    }
    assert len(folders) >= 4
    assert not intruders


def test_an_integration_is_imported_only_by_itself() -> None:
    own = "retroformer.integrations."
    intruders = {
        (name, imported)
        for name, names in import_graph().items()
        for imported in names
        if imported.startswith(own) and name.split(".")[:3] != imported.split(".")[:3]
    }
    assert not intruders


@pytest.mark.parametrize("name", ["method.rollout", "method.rating", "method.records", "run.schedule"])
def test_the_method_does_not_depend_on_the_config(name: str) -> None:
    assert "retroformer.config.experiment" not in reachable(import_graph(), f"retroformer.{name}")


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_the_training_of_a_policy_does_not_depend_on_plans_of_memory(name: str) -> None:
    assert not {module for module in reachable(import_graph(), f"train.rl.{name}") if module.startswith("train.plan")}


@pytest.mark.parametrize("room", ["collect", "eval", "retroformer"])
def test_torch_stays_in_train_and_serve(room: str) -> None:
    assert not [path for path in modules(room) if "torch" in imported_names(path.read_text())]


def loading_calls(source: str) -> list[ast.Call]:
    """Return the calls of `from_pretrained` and `from_config`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = ("from_pretrained", "from_config")
    return [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in names]


def test_one_module_alone_loads_models_and_never_runs_their_code() -> None:
    calls = {
        path: found
        for room in (*ROOMS, "retroformer")
        for path in modules(room)
        if (found := loading_calls(path.read_text()))
    }
    found = calls.pop(ROOT / "retroformer/models/loading.py")
    assert not calls
    assert len(found) == 2
    assert all("trust_remote_code=False" in map(ast.unparse, call.keywords) for call in found)


def test_the_test_of_loading_detects_a_call_inside_a_function() -> None:
    assert loading_calls("def f():\n    return AutoModel.from_pretrained('x')\n")


def test_no_module_touches_the_search_path_and_tests_are_no_packages() -> None:
    touching = [path for room in (*ROOMS, "retroformer") for path in modules(room) if "sys.path" in path.read_text()]
    # A user's own agent is imported from the folder where the command runs.
    assert touching == [ROOT / "retroformer/config/imports.py"]
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_no_module_runs_a_stage_under_the_name_that_only_a_checkout_has() -> None:
    texts = {path: path.read_text() for room in (*ROOMS, "retroformer") for path in modules(room)}
    assert not [path for path, text in texts.items() for room in ROOMS if f'"-m", "{room}"' in text]


def test_importing_costs_no_heavy_library() -> None:
    code = (
        "import sys, retroformer, collect, train, serve, eval, retroformer.method.records, retroformer.method.rollout;"
        "heavy = {'torch', 'transformers', 'openai', 'textworld', 'trl', 'fastchat', 'matplotlib', 'datasets'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_every_shipped_config_describes_an_experiment() -> None:
    configs = sorted((ROOT / "configs").rglob("*.yaml"))
    assert len(configs) >= 3
    for config in configs:
        assert load_domains(config)
        assert config.read_text().startswith("# "), f"{config} does not begin with the command that runs it"


def test_every_module_is_short() -> None:
    long = {
        str(path): lines
        for room in (*ROOMS, "retroformer")
        for path in modules(room)
        if (lines := len(path.read_text().splitlines())) > 350
    }
    assert not long

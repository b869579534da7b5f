"""Programming tasks (Reflexion, section 4.3): problems, hidden tests, and a sandbox for candidate code."""

import contextlib
import platform
import re
import subprocess
from dataclasses import dataclass, replace
from typing import Any

from retroformer.agents.actors import ModelActor
from retroformer.agents.evaluators import TestsEvaluator
from retroformer.environments.extras import ActorKind, Extras
from retroformer.environments.programming.environment import (
    TESTS,
    OwnTestsChapter,
    Programming,
    share_of_tests,
    taskset,
)
from retroformer.environments.programming.loading import MULTIPL_E, load, require_checks
from retroformer.environments.programming.rust import rust_compiler
from retroformer.environments.programming.sandbox import require
from retroformer.errors import ConfigError
from retroformer.method.prompts import program_prompt, tests_prompt
from retroformer.method.protocols import Move, ReturnOf, Scene
from retroformer.method.records import Message

__all__ = ["Section", "extras", "taskset"]

Section = Programming


def _require_machine(section: Any) -> None:
    require()
    require_checks(section.split, section.folder)


def _refuse_training(section: Any) -> None:
    """Refuse sets under MultiPL-E's licence, which forbids training. Raises ConfigError, MissingInput."""
    licence = load(section.split, section.folder).licence
    if licence == MULTIPL_E:
        raise ConfigError(f"{section.split} is for evaluation only ({licence}): train on humaneval or mbpp instead.")


def _shaped(section: Any, seed: int) -> ReturnOf:
    """Return the share of tests passed. Raises ConfigError if attempts have no tests but the hidden ones."""
    if not section.own_tests:
        raise ConfigError(
            "train.rated_by=shaped: with environment.own_tests=0 an attempt records no test but the hidden ones, of "
            "which only the joint result is stored; take train.rated_by=success."
        )
    return share_of_tests


def _tool_versions(section: Any) -> dict[str, str]:
    """Return the versions of Python and, for sets and own files that may use Rust, of its compiler."""
    versions = {"python": platform.python_version()}
    if "rust" in section.split or section.split.endswith(".jsonl"):
        versions["rustc"] = ""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = [rust_compiler() or "rustc", "--version"]
            run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
            versions["rustc"] = run.stdout.strip()
    return versions


extras = Extras(
    actors={
        "programmer": ActorKind(
            lambda parts: replace(ProgrammingActor.build(parts), writes_tests=parts.section.own_tests > 0)
        )
    },
    plays_text=False,
    evaluators={"tests": TestsEvaluator},
    require_machine=_require_machine,
    refuse_training=_refuse_training,
    tool_versions=_tool_versions,
    chapters=OwnTestsChapter,
    returns={"shaped": _shaped},
)


_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True)
class ProgrammingActor(ModelActor):
    """Actor that writes tests, then a program, with one call each (Reflexion, section 4.3).

    An attempt that is shown the one before it (`loop.last_attempt`) keeps its tests.
    """

    writes_tests: bool = True
    """False is the ablation without tests of its own."""

    async def act(self, scene: Scene) -> Move:
        """Return tests as the first action, if any are allowed, then the program. Raises EndpointFailure."""
        if not self.writes_tests or scene.steps:
            return await self._write(scene, program_prompt(self.pack, scene))
        last = scene.memory.last_trajectory
        if last is not None and last.steps and last.steps[0].action.startswith(TESTS):
            return Move(action=last.steps[0].action)
        written = await self._write(scene, tests_prompt(self.pack, scene))
        return written.model_copy(update={"action": f"{TESTS}\n{written.action}"})

    async def _write(self, scene: Scene, prompt: tuple[Message, ...]) -> Move:
        completion = await self.complete(prompt, scene)
        return Move(action=code_in(completion.text), usage=completion.usage)


def code_in(text: str) -> str:
    """Return the content of the first code fence, closed or not; the whole text if there is none."""
    fenced = _FENCED.search(text)
    return (fenced[1] if fenced else text).rstrip()

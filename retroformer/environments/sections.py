"""The environment section of an experiment page, one class for each environment; `name` says which."""

import math
import platform
import re
import subprocess
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from retroformer.secret_url import SecretUrl
from retroformer.section import Positive, Section

_BUILDING_SECONDS = 1200.0
"""More than all compilers and jails of one judged program may take together."""
_WEB_ADDRESS = r"^https?://[^\s?#]+$"


def _web_address(url: SecretUrl) -> SecretUrl:
    # pydantic's own pattern would make plain text of the URL.
    if not re.match(_WEB_ADDRESS, url.secret_url()):
        raise PydanticCustomError("string_pattern_mismatch", f"String should match pattern '{_WEB_ADDRESS}'")
    return url


class EnvironmentSection(Section):
    """What every environment is asked for; an environment from another package adds its own keys in a subclass."""

    success: ClassVar[str] = "as the environment says"
    """When an attempt solves a task: what an oracle evaluator tells, for reports."""
    returns: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """The lowest and the highest possible return of an attempt."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages whose version can change what the environment answers."""
    name: str
    """Which environment: one of this project, or of an installed package's entry points."""
    data: Path | None = None
    """The folder of its data."""
    split: str
    """Which of its tasks."""
    max_steps: Positive
    """Actions after which an episode is truncated."""

    @property
    def longest_step_seconds(self) -> float:
        """How long one action may take that the environment limits by itself; 0 where it does not."""
        return 0.0

    def require_machine(self) -> None:
        """Raises ServiceError where this machine cannot play these tasks; by default every one can."""

    def tool_versions(self) -> dict[str, str]:
        """Versions of the programs, besides Python packages, that decide how the environment answers."""
        return {}

    def refuse_training(self) -> None:
        """Raises ConfigError where a licence keeps these tasks from being trained on; by default none does."""


class Alfworld(EnvironmentSection):
    success: ClassVar[str] = "the game is won"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    packages: ClassVar[tuple[str, ...]] = ("alfworld", "textworld")
    name: Literal["alfworld"] = "alfworld"
    data: Path | None = None
    """A folder as ALFWORLD_DATA names it, or of SPLIT.tar.zst packs; without one $ALFWORLD_DATA, or where
    `alfworld-download` puts them."""
    split: str = "train"
    """train, valid_seen, valid_unseen; for generated games train or held_out."""
    source: Literal["released", "generated"] = "released"
    """The official games, or unlimited games of our own seeded generator."""
    grammar: Literal["put", "move"] = "move"
    """`put X in/on Y` of the papers, or `move X to Y` of alfworld >= 0.4."""
    task_types: tuple[Literal["look", "pick", "clean", "cool", "heat", "two"], ...] = ()
    """Only games of these types; empty means all six."""
    receptacles: Annotated[int, Field(ge=6, le=40)] = 12
    """Places in a room of a generated game; more make search longer."""
    max_steps: Positive = 50
    """Actions after which an episode is truncated (50 in the papers)."""


class Hotpotqa(EnvironmentSection):
    success: ClassVar[str] = "exact match with the gold answer"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    name: Literal["hotpotqa"] = "hotpotqa"
    data: Path | None = None
    """A folder with questions.jsonl[.xz], docstore.jsonl[.xz] and maybe splits.json; without one, the hub's dataset."""
    split: str = "validation_100"
    """A name of splits.json, or `all`."""
    reward: Literal["f1", "em"] = "f1"
    """The return of an answer: the paper's F1 without stop words, or exact match."""
    context: bool = False
    """Whether the gold paragraphs stand before the question (CoT with ground-truth context in Reflexion, section 4.2).
    Questions of the split whose gold pages are not known, or not in the data, are left out then."""
    docstore: Literal["data", "wikipedia"] = "data"
    """Where Search looks: in the pages of the data, or in Wikipedia as it is today, over the network, with a cache on
    disk. An attempt for which it cannot be asked, or wants a rest of more than 20 s, is invalid."""
    wikipedia: Annotated[SecretUrl, AfterValidator(_web_address)] = SecretUrl("https://en.wikipedia.org/w/api.php")
    """The address of the MediaWiki API, for docstore wikipedia."""
    contact: Annotated[str, Field(pattern=r"^[!-~]*$")] = ""
    """Your mail address or web page, which Wikipedia asks of every program; docstore wikipedia needs it."""
    requests_per_second: Annotated[float, Field(gt=0, le=50)] = 2.0
    """At most so many are sent to the wiki, by all processes of this machine together."""
    max_steps: Positive = 6
    """Actions after which an episode is truncated."""

    @model_validator(mode="after")
    def _wikipedia_knows_who_asks(self) -> Self:
        if self.docstore == "wikipedia" and "@" not in self.contact and "." not in self.contact:
            raise PydanticCustomError(
                "environment",
                "Wikipedia asks every program for a contact: set environment.contact to your mail address or web page",
            )
        return self


class Webshop(EnvironmentSection):
    success: ClassVar[str] = "a reward of 1"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    name: Literal["webshop"] = "webshop"
    data: Path | None = None
    """A folder with WebShop's files: items_shuffle*.json, items_ins_v2*.json and what else there is, maybe as .xz."""
    split: str = "train"
    """test (the first 500 goals), validation (the next 1,000), train (the others), or `all`."""
    goals: Literal["synthetic", "human"] = "synthetic"
    """Instructions made from products' attributes and options, or written by people."""
    per_product: Positive | None = 5
    """Goals of one product in the split train, where some have hundreds; with null all of them."""
    text: Literal["react", "text", "text_rich"] = "react"
    """What a page looks like: as in ReAct and Reflexion, or one of WebShop's own two formats."""
    max_steps: Positive = 15
    """Actions after which an episode is truncated."""


def _rustc() -> str:
    """The version of the Rust compiler; empty where there is none."""
    try:
        return subprocess.run(
            ["rustc", "--version"], capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


class Programming(EnvironmentSection):
    success: ClassVar[str] = "the hidden tests pass"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    name: Literal["programming"] = "programming"
    data: Path | None = None
    """The folder with the files of the problem sets, as published."""
    split: str = "humaneval"
    """A problem set: humaneval, mbpp, multipl-e-humaneval-rust and others, or a file of your own, NAME.jsonl."""
    own_tests: Annotated[int, Field(ge=0, le=32)] = 6
    """Tests that the agent may write for itself; 0 is the ablation without them."""
    cpu_seconds: Annotated[int, Field(ge=1, le=60)] = 10
    """Of computing for one test of the agent's own, and for all hidden ones together."""
    max_steps: Positive = 2
    """Actions after which an episode is truncated: tests, then the program."""

    @property
    def longest_step_seconds(self) -> float:
        """By the clock for judging one program: its own limits end it sooner, with a verdict, on any load."""
        return (self.own_tests + 2) * (self.wall_seconds + 1.0) + _BUILDING_SECONDS

    @property
    def wall_seconds(self) -> float:
        """By the clock for one test: a busy machine makes code wait."""
        return 4.0 * self.cpu_seconds

    def require_machine(self) -> None:
        """Candidate code is isolated, or not run. Raises ServiceError."""
        from retroformer.environments.programming.sandbox import require

        require()

    def tool_versions(self) -> dict[str, str]:
        """Python judges Python programs; the compiler those of sets, and of own files, that may be in Rust."""
        compiler = {"rustc": _rustc()} if "rust" in self.split or self.split.endswith(".jsonl") else {}
        return {"python": platform.python_version()} | compiler

    def refuse_training(self) -> None:
        """MultiPL-E's licence forbids it. Raises ConfigError, MissingInput."""
        from retroformer.environments.programming.taskset import taskset

        taskset(self).problem_set.for_training()

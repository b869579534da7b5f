"""Wrapper of Fast Downward, TextWorld's planner: translates PDDL to SAS once per problem, then steps through states.

The library is imported on first use. Its import rewrites `sys.argv`; this module restores it.
"""

import hashlib
import json
import logging
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import zstandard

from retroformer.environments.alfworld.text_grammar import Fact
from retroformer.errors import EnvironmentFailure, MissingInput
from retroformer.files.cache import cache_folder
from retroformer.files.durable import replace_file

_FORMAT = "1"
"""Format version of a cached translation; a change invalidates old ones."""

_log = logging.getLogger(__name__)
_idle: list[Any] = []
"""Copies of the library that no planner uses any more."""


class Translation(NamedTuple):
    """Problem in the planner's format, with the facts of the initial state and the type of each entity."""

    sas: str
    facts: list[Fact]
    types: dict[str, str]
    parameters: dict[str, list[str]]
    """Variables of each action, in the order of an operator's arguments."""


class Operator(NamedTuple):
    """Grounded action that is possible now."""

    number: int
    name: str
    """Action and its entities, separated by blanks."""
    effects: int


def translate(domain: str, problem: str) -> Translation:
    """Return the translation of a problem, from the disk cache if present. Raises EnvironmentFailure."""
    key = hashlib.sha256("\0".join((_FORMAT, domain, problem)).encode()).hexdigest()
    path = cache_folder() / "alfworld" / "sas" / key[:2] / f"{key}.json.zst"
    try:
        facts: list[list[str]]
        sas, facts, types, parameters = json.loads(zstandard.decompress(path.read_bytes()))
        return Translation(sas, [tuple(fact) for fact in facts], types, parameters)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, zstandard.ZstdError) as error:
        _log.warning("The cached game %s cannot be read (%s) and is made again.", path, error)
    translation = _translate(domain, problem)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as unfinished:
            unfinished.write_bytes(zstandard.compress(json.dumps(translation).encode(), 6))
    except OSError as error:
        # If the cache cannot be written, the run goes on and only loses time.
        _log.warning("The cache %s cannot be written (%s): games will load more slowly.", path, error)
    return translation


def _translate(domain: str, problem: str) -> Translation:
    planner = _planner()
    try:
        with _own_arguments():
            task, sas = planner.pddl2sas(domain, problem)
    except (Exception, SystemExit) as error:
        # On PDDL that it cannot read, the translator exits the process or raises any parser error.
        raise EnvironmentFailure(f"The planner cannot read this game's problem: {error!r}.") from error
    atoms = (atom for atom in task.init if isinstance(atom, planner.translate.pddl.conditions.Atom))
    return Translation(
        sas=sas,
        facts=[(atom.predicate, *atom.args) for atom in atoms if atom.predicate != "="],
        types={entity.name: entity.type_name for entity in task.objects},
        parameters={
            action.name: [parameter.name.strip("?") for parameter in action.parameters] for action in task.actions
        },
    )


class Planner:
    """One copy of the planner's library, which holds one state. Do not share it between concurrent games."""

    def __init__(self) -> None:
        self._planner = _planner()
        self._library = _idle.pop() if _idle else self._planner.load_lib()
        # Unloading one of several copies crashes the process, at exit at the latest, so the next planner reuses it.
        weakref.finalize(self, _idle.append, self._library).atexit = False

    translate = staticmethod(translate)

    def load(self, translation: Translation) -> None:
        """Go to the initial state of a problem."""
        self._library.load_sas(translation.sas.encode())

    def operators(self) -> Iterator[Operator]:
        """Yield the operators possible now."""
        applicable = (self._planner.Operator * self._library.get_applicable_operators_count())()
        self._library.get_applicable_operators(applicable)
        for operator in applicable:
            yield Operator(operator.id, operator.name, operator.nb_effect_atoms)

    def apply(self, operator: Operator) -> Iterator[Fact]:
        """Go to the next state and yield the facts that change; a false one as `not_PREDICATE`."""
        effects = (self._planner.Atom * operator.effects)()
        self._library.apply_operator(operator.number, effects)
        for effect in effects:
            sign, _, atom = effect.name.partition(" ")
            predicate, _, entities = atom.rstrip(")").partition("(")
            yield ("not_" * (sign == "NegatedAtom") + predicate, *filter(None, entities.split(", ")))

    def at_goal(self) -> bool:
        return bool(self._library.check_goal())


def _planner() -> Any:
    """Return the planner's module, imported on first use."""
    try:
        with _own_arguments():
            import fast_downward
    except ImportError:
        raise MissingInput("ALFWorld's planner is not installed: run pip install 'retroformer[alfworld]'.") from None
    return fast_downward


@contextmanager
def _own_arguments() -> Iterator[None]:
    """Restore `sys.argv` afterwards: the planner's option parser reads and rewrites it, also on import."""
    arguments = sys.argv
    try:
        yield
    finally:
        sys.argv = arguments

"""Which adapter is served as `reflector`: the records in runs/RUN/promotions, one file each.

A record is never changed. Its file appears with its whole content, under the next number: of two commands that decide
at the same time, the second is refused, since it decided about an adapter that is no longer current.

An adapter is copied to runs/RUN/promotions/adapters/HASH before it is tested. So what was tested is what is served,
and training the stage again changes nothing.
"""

import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from retroformer.errors import ConfigError, DamagedFile, MissingInput
from retroformer.files.durable import delete, publish, sync, sync_entries
from retroformer.method.records import Record
from retroformer.run.provenance import ADAPTER_FILES, folder_sha256
from retroformer.run.stage_metrics import METRICS

NO_ADVICE = "no advice"
"""Name of the state in which `reflector` answers with an empty text."""
DIGITS = 12
"""Length of a hash in names and messages."""


class PromotedAdapter(Record):
    """An adapter by its name in the run and its content."""

    name: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    def __str__(self) -> str:
        return f"{self.name}@{self.sha256[:DIGITS]}"


class Evidence(Record):
    """What a sequential test has shown."""

    against: str
    """What the adapter was compared with: another adapter, or `no advice`."""
    pairs: Annotated[int, Field(ge=0)]
    """Number of paired differences up to the conclusion."""
    better: Annotated[int, Field(ge=0)]
    """Number of pairs in which the adapter had the higher return."""
    worse: Annotated[int, Field(ge=0)]
    """Number of pairs in which it had the lower return."""
    mean_difference: float
    """Mean difference of the returns, which count as at least 0 and at most 1."""
    log_wealth: float
    """Natural logarithm of the wealth of the bet that won; the conclusion holds once it reaches log(1 / level)."""
    level: Annotated[float, Field(gt=0, lt=1)]
    """Largest probability of this conclusion if it is wrong."""
    arms: tuple[str, ...] = ()
    """Arms of the store that hold the attempts."""

    def __str__(self) -> str:
        return (
            f"{self.better} better, {self.worse} worse of {self.pairs} pairs against {self.against}, "
            f"mean difference {self.mean_difference:+.3f}, level {self.level:g}"
        )


class Promotion(Record):
    """A change of the adapter that is served as `reflector`."""

    number: Annotated[int, Field(ge=1)]
    kind: Literal["first", "promoted", "rolled back"]
    """first: served before any test, as nothing was served before; promoted: shown to be better; rolled back: the
    adapter before is served again."""
    adapter: PromotedAdapter | None
    """Adapter that is served from now on; None: no advice."""
    replaced: PromotedAdapter | None
    """Adapter that was served before; None: no advice."""
    reason: str
    evidence: Evidence | None = None
    at: datetime
    """Time of the change, in UTC."""
    by_monitor: bool = False
    """True if the monitor of live outcomes made it."""


class History:
    """Promotions of the run in `folder`, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "promotions"

    def records(self) -> tuple[Promotion, ...]:
        """Read all promotions, oldest first. Raises DamagedFile."""
        return tuple(map(_read, self._paths()))

    @property
    def length(self) -> int:
        """Number of promotions, without reading them."""
        return len(self._paths())

    def current(self) -> PromotedAdapter | None:
        """Return the adapter that is served as `reflector`; None: no advice, or no promotion yet."""
        return current_of(self.records())

    def append(
        self,
        earlier: Sequence[Promotion],
        kind: Literal["first", "promoted", "rolled back"],
        adapter: PromotedAdapter | None,
        reason: str,
        evidence: Evidence | None = None,
        by_monitor: bool = False,
    ) -> Promotion:
        """Add a promotion after the `earlier` ones, and return it once it is on the disk.

        Raises ConfigError if another command has added one in the meantime.
        """
        promotion = Promotion(
            number=len(earlier) + 1,
            kind=kind,
            adapter=adapter,
            replaced=current_of(earlier),
            reason=reason,
            evidence=evidence,
            at=datetime.now(UTC),
            by_monitor=by_monitor,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{promotion.number:06d}.json"
        unfinished = self.folder / f".{secrets.token_hex(8)}.unfinished"
        try:
            unfinished.write_text(promotion.model_dump_json(indent=1) + "\n", encoding="utf-8")
            sync(unfinished)
            os.link(unfinished, path)  # Unlike a rename, it fails if the number is taken.
        except FileExistsError:
            raise ConfigError(
                f"Another command has changed the reflector of {self.folder.parent} in the meantime: look at "
                "`retroformer promotions EXPERIMENT.yaml` and decide again."
            ) from None
        finally:
            unfinished.unlink(missing_ok=True)
        sync_entries(self.folder)
        return promotion

    def folder_of(self, adapter: PromotedAdapter) -> Path:
        """Return the folder of the copy of an adapter. Raises DamagedFile if it is not the recorded one."""
        folder = self._copy(adapter.sha256)
        if _holds(folder, adapter):
            return folder
        raise DamagedFile(
            f"The copy of the promoted adapter {adapter} in {folder} is missing or altered: restore it from a backup, "
            "or go back to the adapter before with `retroformer rollback EXPERIMENT.yaml`."
        )

    def keep(self, name: str, source: Path) -> PromotedAdapter:
        """Copy the adapter in `source`, unless a sound copy exists, and return its identity.

        Raises MissingInput if there is none, and ConfigError if it changes meanwhile.
        """
        kept = PromotedAdapter(name=name, sha256=folder_sha256(source))
        target = self._copy(kept.sha256)
        if _holds(target, kept):
            return kept
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{secrets.token_hex(8)}.unfinished")
        try:
            unfinished.mkdir()
            # The metrics list the tasks that the adapter was trained on.
            for file in (*ADAPTER_FILES, *([METRICS] if (source / METRICS).is_file() else [])):
                shutil.copyfile(source / file, unfinished / file)
            if not _holds(unfinished, kept):
                raise ConfigError(f"{source} changed while it was copied: run the command again once it is trained.")
            publish(unfinished, target)
        except OSError:
            if not _holds(target, kept):  # Otherwise another command was faster.
                raise
        finally:
            delete(unfinished)
        return kept

    def _copy(self, sha256: str) -> Path:
        return self.folder / "adapters" / sha256[:DIGITS]

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.json"))


def _holds(folder: Path, adapter: PromotedAdapter) -> bool:
    with suppress(MissingInput, OSError):
        return folder_sha256(folder) == adapter.sha256
    return False


def stack_of(records: Sequence[Promotion]) -> list[PromotedAdapter]:
    """Return the current adapter, last, and those below it that rollbacks lead to. Below the first is no advice."""
    stack = list[PromotedAdapter]()
    for record in records:
        if record.kind == "rolled back":
            stack = stack[:-1]
        elif record.adapter is not None:
            # The first adapter may be tested later, while it is current.
            stack = [*(adapter for adapter in stack if adapter.sha256 != record.adapter.sha256), record.adapter]
    return stack


def current_of(records: Sequence[Promotion]) -> PromotedAdapter | None:
    """Return the adapter that is current after these promotions; None: no advice."""
    stack = stack_of(records)
    return stack[-1] if stack else None


def roll_back(
    history: History,
    earlier: Sequence[Promotion],
    reason: str,
    evidence: Evidence | None = None,
    by_monitor: bool = False,
) -> Promotion:
    """Serve the adapter before the current one again, or no advice if there was none.

    Raises MissingInput if no adapter is current, ConfigError if another command has changed the reflector meanwhile.
    """
    stack = stack_of(earlier)
    if not stack:
        raise MissingInput(
            f"No adapter in {history.folder.parent} is served as reflector, so there is none to go back from: look at "
            "`retroformer promotions EXPERIMENT.yaml`."
        )
    before = stack[-2] if len(stack) > 1 else None
    return history.append(earlier, "rolled back", before, reason, evidence, by_monitor)


def name_of(adapter: PromotedAdapter | None) -> str:
    """Return the adapter's name for messages."""
    return NO_ADVICE if adapter is None else str(adapter)


def _read(path: Path) -> Promotion:
    try:
        return Promotion.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        raise DamagedFile(
            f"The record of a promotion {path} cannot be read: restore it from a backup; without it nobody knows which "
            "adapter is the reflector."
        ) from None

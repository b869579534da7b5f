"""Records of promotions and rollbacks. They are only ever added; which adapter is current follows from them."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from retroformer.method.records import Record

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

"""Config section of HotPotQA."""

import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from retroformer.environments.section import EnvironmentSection
from retroformer.experiment.sections.base import Positive
from retroformer.secrets.url import SecretUrl

_WEB_ADDRESS = r"^https?://[^\s?#]+$"


def _web_address(url: SecretUrl) -> SecretUrl:
    # pydantic's own pattern would turn the URL into plain text.
    if not re.match(_WEB_ADDRESS, url.secret_url()):
        raise PydanticCustomError("string_pattern_mismatch", f"String should match pattern '{_WEB_ADDRESS}'")
    return url


class Hotpotqa(EnvironmentSection):
    success: ClassVar[str] = "exact match with the gold answer"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    name: Literal["hotpotqa"] = "hotpotqa"
    data: Path | None = None
    """Folder with questions.jsonl[.xz], docstore.jsonl[.xz] and optionally splits.json; default: the hub's dataset."""
    split: str = "validation_100"
    """Name of a split in splits.json, or `all`, or `train_N` or `validation_N`: the N questions of HotPotQA's training
    or development set whose ids have the smallest sha256."""
    reward: Literal["f1", "em"] = "f1"
    """Return of an answer: the paper's F1 without stop words, or exact match."""
    context: bool = False
    """If true, the gold paragraphs precede the question (CoT with ground-truth context in Reflexion, section 4.2).
    Questions of the split whose gold pages are unknown or missing in the data are then left out."""
    sentences: Annotated[int, Field(ge=0, le=100)] = 0
    """Number of a page's first sentences that Search shows: 5 in ReAct and in Reflexion's first version; 0 shows the
    whole first paragraph, as in the official code."""
    docstore: Literal["data", "wikipedia"] = "data"
    """Source of pages for Search: the data, or live Wikipedia over the network, with a cache on disk. An attempt is
    invalid if Wikipedia cannot be reached, or asks to wait for more than 20 s."""
    wikipedia: Annotated[SecretUrl, AfterValidator(_web_address)] = SecretUrl("https://en.wikipedia.org/w/api.php")
    """URL of the MediaWiki API, for docstore wikipedia."""
    contact: Annotated[str, Field(pattern=r"^[!-~]*$")] = ""
    """Your mail address or web page, which Wikipedia requires of every program; mandatory for docstore wikipedia."""
    requests_per_second: Annotated[float, Field(gt=0, le=50)] = 2.0
    """Maximum request rate to the wiki, over all processes of this machine."""
    max_steps: Positive = 6
    """Actions after which an episode is truncated."""

    def accepts_logs_rated_by(self, name: str) -> bool:
        """Return True for both versions of F1 if the reward is F1, else for exact match only."""
        return name in ("f1", "f1_with_stop_words") if self.reward == "f1" else name == "em"

    @model_validator(mode="after")
    def _require_contact(self) -> Self:
        if self.docstore == "wikipedia" and "@" not in self.contact and "." not in self.contact:
            raise PydanticCustomError(
                "environment",
                "Wikipedia requires a contact of every program: set environment.contact to your mail address or web "
                "page",
            )
        return self

"""Parses what a store holds as text. A text that no stage wrote, as in a damaged file, is a StoreError."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from retroformer.errors import StoreError
from retroformer.secrets.url import SecretUrl

Parsed = TypeVar("Parsed", bound=BaseModel)


class Parser:
    """Parser of the texts of one store."""

    def __init__(self, url: SecretUrl) -> None:
        self._url = url

    def record(self, kind: type[Parsed], text: str) -> Parsed:
        """Parse a whole fact from its JSON."""
        with self._of(kind.__name__.strip("_").lower()):
            return kind.model_validate_json(text)

    def values(self, kind: type[Parsed], columns: Mapping[str, Any]) -> Parsed:
        """Check the columns of a row."""
        with self._of(kind.__name__.strip("_").lower()):
            return kind.model_validate(columns)

    def time(self, text: str) -> datetime:
        """Parse the time when a fact was stored."""
        with self._of("time"):
            return datetime.fromisoformat(text)

    @contextmanager
    def _of(self, what: str) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError) as error:
            fault = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise StoreError(
                f"The store {self._url} holds a text that is no {what} ({fault}): restore a copy of it, or save "
                "its readable facts into a new file with `retroformer recover EXPERIMENT.yaml`."
            ) from error

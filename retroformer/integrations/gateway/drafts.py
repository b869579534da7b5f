"""Unscored attempts, stored in a table beside the facts, so that killing the gateway loses none.

Drafts that arrive while a transaction runs are written together in the next one.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from retroformer.agents.attempt_result import AttemptResult, read_result
from retroformer.agents.messages import steps_of
from retroformer.coach.recorder import OpenTask
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.files.text import storable
from retroformer.method.records import ChatMessage, Usage, content_text
from retroformer.run.store.database import Database, insert_into

_TABLES = sa.MetaData()
_DRAFTS = sa.Table(
    "gateway_drafts",
    _TABLES,
    sa.Column("experiment", sa.String, primary_key=True),
    sa.Column("run", sa.String, primary_key=True),
    sa.Column("task", sa.String, primary_key=True),
    sa.Column("record", sa.Text, nullable=False),
)


@dataclass(frozen=True)
class ScoreReceipt:
    """What became of an attempt."""

    task: str
    """Id of the story in the store."""
    trial: int
    advice: str = ""
    over: bool = False
    """True if the next call begins a new story."""
    error: str = ""
    """Sentence that says why there is no advice; empty if none was due, or if it was written."""


class Draft(BaseModel):
    """A task in work at the gateway: its story, and the attempt without a score."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    story: OpenTask
    conversations: list[list[ChatMessage]] = []
    """Messages of a call, the last of them the provider's answer."""
    usage: Usage = Usage()
    number: int = 0
    """Number of attempts before this one, invalid ones included."""
    scored: tuple[float, ScoreReceipt] | None = None
    """The last score and its receipt until the next call: a client that lost the answer gives the score again."""
    in_flight: int = Field(default=0, exclude=True)
    """Calls that are not recorded yet."""
    lock: asyncio.Lock = Field(default_factory=asyncio.Lock, exclude=True)
    """Held while the attempt is scored."""

    def add(self, sent: Sequence[ChatMessage], answer: ChatMessage, usage: Usage) -> None:
        """Record a call. It replaces the earlier call that it continues, since its messages include that call's."""
        if not self.story.opening:
            # The task is what the user said before the agent's first answer.
            asked = takewhile(lambda message: message.role != "assistant", sent)
            said = (content_text(message.content) for message in asked if message.role == "user")
            self.story.opening = storable("\n".join(said))
        self.usage += usage
        # Agents may write a turn of their own in place of the answer; of several answers to one prompt, the one that
        # is in the call is continued.
        begun = [place for place, earlier in enumerate(self.conversations) if _continues(sent, earlier[:-1])]
        exact = [place for place in begun if _continues(sent, self.conversations[place])]
        if continued := exact or begun:
            self.conversations[continued[0]] = [*sent, answer]
        else:
            self.conversations.append([*sent, answer])

    def result(self, score: float) -> AttemptResult:
        """Return the attempt with its score: the steps of all its conversations, in the order in which they began."""
        steps = tuple(step for conversation in self.conversations for step in steps_of(conversation))
        return read_result({"steps": steps, "score": score, "usage": self.usage}, None)

    def end(self) -> None:
        """Begin the next attempt."""
        self.conversations, self.usage, self.number, self.scored = [], Usage(), self.number + 1, None


def _continues(sent: Sequence[ChatMessage], earlier: Sequence[ChatMessage]) -> bool:
    return len(sent) > len(earlier) and list(sent[: len(earlier)]) == list(earlier)


class Drafts:
    """Table of the drafts of one run, read and written in a thread of its own."""

    def __init__(self, url: SecretUrl, experiment: str) -> None:
        """Open the table, and create it if it does not exist. Raises StoreError."""
        self._experiment = experiment
        self._database = Database(url)
        self._database.write(_TABLES.create_all)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drafts")
        self._waiting = dict[tuple[str, str], str]()
        """Drafts to write in the next transaction, by run and task, as they are stored."""
        self._writing = asyncio.Lock()

    async def load(self, run: str, task: str) -> Draft | None:
        """Return the draft of this run and task, or None. Raises StoreError."""
        columns = _DRAFTS.c
        query = sa.select(columns.record).where(
            columns.experiment == self._experiment, columns.run == run, columns.task == task
        )
        read = partial(self._database.read, lambda connection: connection.execute(query).scalar())
        record = await asyncio.get_running_loop().run_in_executor(self._thread, read)
        return Draft.model_validate_json(record) if record else None

    async def save(self, run: str, task: str, draft: Draft) -> None:
        """Write a draft as it is now. Raises StoreError."""
        self._waiting[run, task] = draft.model_dump_json()
        async with self._writing:
            batch, self._waiting = self._waiting, {}
            if not batch:
                return  # An earlier transaction has written it.
            try:
                write = partial(self._database.write, partial(self._write_all, batch))
                await asyncio.get_running_loop().run_in_executor(self._thread, write)
            except BaseException:
                self._waiting = batch | self._waiting
                raise

    def close(self) -> None:
        """Finish the current transaction and close the database."""
        self._thread.shutdown(wait=True)
        self._database.close()

    def _write_all(self, rows: dict[tuple[str, str], str], connection: sa.Connection) -> None:
        for (run, task), record in rows.items():
            row = {"experiment": self._experiment, "run": run, "task": task, "record": record}
            insert = insert_into(_DRAFTS, connection).values(**row)
            connection.execute(insert.on_conflict_do_update(index_elements=list(row)[:3], set_={"record": record}))

"""The questions that a section of the experiment page describes."""

from retroformer.cache import cache_folder
from retroformer.environments.hotpotqa.data import Folder, Hub, question_key
from retroformer.environments.hotpotqa.docstore import Docstore, build_once
from retroformer.environments.hotpotqa.environment import HotpotqaEnvironment
from retroformer.environments.sections import Hotpotqa
from retroformer.records import Task


class HotpotqaTaskset:
    """Questions of one split; all its environments share one open docstore."""

    def __init__(self, section: Hotpotqa, source: Folder | Hub) -> None:
        self._section, self._source = section, source
        self._docstore: Docstore | None = None

    def tasks(self) -> tuple[Task, ...]:
        """All questions of the split, in its order; the task's id is the question's.

        Raises:
            MissingInput: the data are not there.
            UnknownTask: there is no such split; the message names those that exist.
        """
        split = self._section.split
        return tuple(Task(id=task_id, environment="hotpotqa", split=split) for task_id in self._source.split(split))

    def ids_by_question(self) -> dict[str, str]:
        """The task id of every question of the data, by `question_key`. Raises MissingInput."""
        return {question_key(question.text): task_id for task_id, question in self._source.questions.items()}

    def environment(self) -> HotpotqaEnvironment:
        """An environment that can play any question of the data. The first one on a machine builds the index.

        Raises:
            MissingInput: the data are not there.
        """
        if self._docstore is None:
            path = cache_folder() / "hotpotqa" / self._source.docstore_name()
            self._docstore = Docstore(build_once(self._source.pages(), path))
        return HotpotqaEnvironment(
            self._source.questions, self._docstore, self._section.reward, self._section.max_steps
        )


def taskset(section: Hotpotqa, seed: int = 0) -> HotpotqaTaskset:
    """The questions that a section describes, from its folder or from the hub. There is nothing to draw by `seed`."""
    return HotpotqaTaskset(section, Folder(section.data) if section.data else Hub())

"""The attempts and the advice that preceded an attempt."""

from collections.abc import Iterable, Mapping

from retroformer.method.records import Key, Lesson, Memory, Trajectory
from retroformer.run.store import StoredReflection


def ancestors(
    key: Key, attempts: Mapping[Key, Trajectory], advice: Mapping[Key, StoredReflection]
) -> tuple[Lesson, ...]:
    """Return the attempts that led to the one under `key`, each with the advice about it, oldest first.

    They end where a fact is missing: an imported case may begin at any trial.
    """
    lessons = list[Lesson]()
    while (stored := advice.get(key)) is not None and (key := key_before(stored)) in attempts:
        lessons.append(Lesson(attempt=attempts[key], advice=stored.reflection.text))
    return tuple(reversed(lessons))


def memory_of(lessons: Iterable[Lesson], capacity: int) -> Memory:
    """Return the memory after these lessons, oldest first, of an actor that remembers `capacity` reflections."""
    memory = Memory()
    for lesson in lessons:
        memory = memory.remember(lesson.advice, capacity, lesson.attempt)
    return memory


def key_before(stored: StoredReflection) -> Key:
    """Return the key of the attempt that a reflection is about."""
    key = stored.key
    return key.model_copy(update={"trial": key.trial - 1, "candidate": stored.previous_candidate, "repeat": 0})

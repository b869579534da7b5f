"""A run of two arms with retries, repeats, an eval arm and an invalid attempt, written to a real store."""

from contextlib import closing
from pathlib import Path

from retroformer.method.records import (
    Author,
    Ending,
    FinishReason,
    Key,
    Message,
    Outcome,
    Reflection,
    Sampling,
    Step,
    Task,
    Trajectory,
    Usage,
)
from retroformer.run.arm_names import COLLECT, FIRST_TRIAL
from retroformer.run.store import NewInvalid, NewReflection, NewTrajectory, Store

EVAL = "eval/trained"
DOOR = Task(id="door-1", environment="doors", split="train")


def attempt(*actions: str, solved: bool = False, task: Task = DOOR) -> Trajectory:
    """Return an attempt whose observations follow from its actions; its return is 1 if it solved the task."""
    steps = [Step(action=action, observation=f"You {action}.") for action in actions]
    steps[-1] = steps[-1].model_copy(update={"reward": float(solved)})
    return Trajectory(
        task=task,
        opening="A door.",
        steps=tuple(steps),
        outcome=Outcome.SUCCESS if solved else Outcome.FAILURE,
        ending=Ending.SOLVED if solved else Ending.TERMINATED,
        usage=Usage(calls=len(actions), prompt_tokens=10, completion_tokens=2),
    )


def advice(text: str, completion_tokens: int = 5, finish_reason: FinishReason = "stop") -> Reflection:
    return Reflection(
        text=text,
        prompt=(Message(role="user", content="The door stayed shut."),),
        author=Author(endpoint="embedded", model="sft"),
        sampling=Sampling(max_new_tokens=20),
        finish_reason=finish_reason,
        usage=Usage(calls=1, prompt_tokens=30, completion_tokens=completion_tokens),
    )


def write_run(folder: Path, name: str = "doors") -> Path:
    """Write the run to FOLDER/experience.db and return the path of the store."""
    path = folder / "experience.db"
    with closing(Store(f"sqlite:///{path}", name)) as store:
        for arm in (COLLECT, FIRST_TRIAL, EVAL):
            store.declare(arm, {"loop": {"memory": 1 if arm == EVAL else 3}})
        _collected(store)
        _evaluated(store)
    return path


def _collected(store: Store) -> None:
    """Trial 1 has three candidates; the second, with the highest return, is retried once more, twice."""
    first = Key(arm=COLLECT, task_id=DOOR.id)
    store.add(
        [
            NewTrajectory(first, attempt("knock", "wait")),
            NewReflection(_key(first, 1, 0), 0, advice("Wait longer.", 20, "length")),
            NewTrajectory(_key(first, 1, 0), attempt("knock", "wait")),
            NewReflection(_key(first, 1, 1), 0, advice("Look for a key.")),
            NewTrajectory(_key(first, 1, 1), _half(attempt("knock", "look", "wait"))),
            NewReflection(_key(first, 1, 2), 0, advice("The door stayed shut.", 5, "length")),
            NewReflection(_key(first, 2, 0), 1, advice("look for  a KEY")),
            NewTrajectory(_key(first, 2, 0), attempt("take key", "open", solved=True)),
            NewTrajectory(_key(first, 2, 0, repeat=1), attempt("take key", "wait")),
            NewInvalid(_key(first, 1, 2), "EndpointFailure: the server answered 500", Usage(calls=1)),
        ]
    )


def _evaluated(store: Store) -> None:
    """Two tasks share their trial 0; the second was solved at once, so no arm retries it."""
    easy = DOOR.model_copy(update={"id": "door-2"})
    shared, own = Key(arm=FIRST_TRIAL, task_id=DOOR.id), Key(arm=EVAL, task_id=DOOR.id)
    store.add(
        [
            NewTrajectory(shared, attempt("knock")),
            NewTrajectory(shared.model_copy(update={"task_id": easy.id}), attempt("open", solved=True, task=easy)),
            NewReflection(_key(own, 1, 0), 0, advice("Open it.")),
            NewTrajectory(_key(own, 1, 0), attempt("knock", "push")),
            NewReflection(_key(own, 2, 0), 0, advice("Pull it.")),
            NewTrajectory(_key(own, 2, 0), attempt("pull", solved=True)),
        ]
    )


def _half(trajectory: Trajectory) -> Trajectory:
    last = trajectory.steps[-1].model_copy(update={"reward": 0.5})
    return trajectory.model_copy(update={"steps": (*trajectory.steps[:-1], last)})


def _key(first: Key, trial: int, candidate: int, repeat: int = 0) -> Key:
    return first.model_copy(update={"trial": trial, "candidate": candidate, "repeat": repeat})

"""Attempts in a small ALFWorld room, written by hand."""

from retroformer.method.records import Ending, Outcome, Step, Task, Trajectory

ROOM = ("desk 1", "drawer 1", "drawer 2", "drawer 3", "shelf 1", "shelf 2")


def walked(*places: str, **contents: str) -> tuple[Step, ...]:
    """Return the steps of a walk to these places; `contents` are the things there, as in `desk_1="mug 1, pen 2"`."""
    steps = list[Step]()
    for place in places:
        things = ", ".join(f"a {thing}" for thing in contents.get(place.replace(" ", "_"), "").split(", ") if thing)
        steps.append(Step(action=f"go to {place}", observation=f"On the {place}, you see {things or 'nothing'}."))
    return tuple(steps)


def took(thing: str, place: str) -> Step:
    return Step(action=f"take {thing} from {place}", observation=f"You pick up the {thing} from the {place}.")


def attempt(
    *steps: Step, task_id: str = "mug/1", sentence: str = "put some mug on desk", solved: bool = False
) -> Trajectory:
    """Return an attempt in the room that solved the task or ended at the step limit."""
    room = ", ".join(f"a {place}" for place in ROOM)
    return Trajectory(
        task=Task(id=task_id, environment="alfworld", split="held_out"),
        opening=f"You are in the middle. Looking around you, you see {room}.\n\nYour task is to: {sentence}.",
        steps=steps,
        outcome=Outcome.SUCCESS if solved else Outcome.FAILURE,
        ending=Ending.SOLVED if solved else Ending.STEP_LIMIT,
    )

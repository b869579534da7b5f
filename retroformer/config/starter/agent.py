"""A toy agent that opens boxes. Put your own agent in its place."""

WORDS = (
    *("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron"),
    *("inlet", "junco", "kettle", "larch", "maple", "nectar", "otter", "pebble"),
    *("quartz", "raven", "saddle", "timber", "umber", "violet", "willow", "zephyr"),
)


def attempt(task: dict[str, str], advice: str = "") -> dict[str, object]:
    """Say a word that the advice names; without advice, guess.

    task: a line of tasks.jsonl. The result holds what the agent did, and a score from 0 to 1.
    """
    word = next((word for word in WORDS if word in advice.lower()), "sesame")
    opened = word == task["word"]
    seen = "The box opens." if opened else f"The box stays shut. A note on it says: the word is {task['word']}."
    return {"steps": [{"action": f"say {word}", "observation": seen}], "score": float(opened)}

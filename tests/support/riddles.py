"""Environments of verifiers, as an outside package would have them: one turn, several turns, and tools.

`install` writes a module that `verifiers.load_environment("riddles")` finds.
"""

from pathlib import Path

MODULE = '''
import verifiers as vf
from datasets import Dataset

WORDS = ["apple", "river", "stone", "cloud"]


def rows(words):
    return Dataset.from_list([{"question": f"Say {word} backwards.", "answer": word[::-1]} for word in words])


def exact(completion, answer):
    return 1.0 if completion[-1].content.strip() == answer else 0.25 if answer in completion[-1].content else 0.0


class Guessing(vf.MultiTurnEnv):
    """Three turns to find the word; the environment answers each."""

    async def env_response(self, messages, state, **kwargs):
        said = messages[-1].content.strip()
        if said == "break":
            raise vf.InfraError("the line went dead")
        if said == state["answer"]:
            state["won"] = True
            state["final_env_response"] = [{"role": "user", "content": "Yes."}]
            return state["final_env_response"]
        return [{"role": "user", "content": f"Not {said}."}]


def won(state):
    return 2.0 if state.get("won") else 0.0


def backwards(word: str) -> str:
    """Return a word backwards.

    Args:
        word: the word.
    """
    return word[::-1]


def load_environment(kind="one turn", evaluation=True):
    both = {"dataset": rows(WORDS)} | ({"eval_dataset": rows(["lemon"])} if evaluation else {})
    if kind == "one turn":
        return vf.SingleTurnEnv(system_prompt="Answer with one word.", rubric=vf.Rubric(funcs=[exact]), **both)
    if kind == "tools":
        return vf.ToolEnv(tools=[backwards], rubric=vf.Rubric(funcs=[exact]), max_turns=4, **both)
    return Guessing(max_turns=3, rubric=vf.Rubric(funcs=[won]), **both)
'''


def install(folder: Path) -> None:
    """Write the module into a folder of the search path."""
    (folder / "riddles.py").write_text(MODULE)

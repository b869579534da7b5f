"""An evaluation with the real `inspect_ai`: an agent that solves a sum only from the second epoch, with advice.

`python -m tests.support.inspect_task '[[FOLDER, SAMPLES, EPOCHS, QUESTION, FORMAT]]'` prints the path of each log.
"""

import json
import sys
from typing import Any

from inspect_ai import Task
from inspect_ai import eval as run_inspect
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate, solver, use_tools
from inspect_ai.tool import tool


@tool
def lookup() -> Any:
    async def execute(key: str) -> str:
        """Look up a key.

        Args:
            key: The key.
        """
        return f"{key} is 2"

    return execute


@solver
def advised_from_the_second_epoch() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        if state.epoch > 1 and "crash" not in state.input_text:
            state.metadata["advice"] = "Look it up."
            state.messages.insert(0, ChatMessageSystem(content="Look it up."))
        return state

    return solve


@scorer(metrics=[accuracy()])
def right() -> Any:
    async def score(state: Any, target: Any) -> Score:
        return Score(value="C" if state.output.completion == target.text else "I")

    return score


def scripted(messages: list[Any], *_: Any) -> ModelOutput:
    """Answer rightly after a look at the tool, which it uses only when advised."""
    advised = any(message.text == "Look it up." for message in messages)
    if messages[-1].role == "tool":
        output = ModelOutput.from_content("mockllm", "2")
    elif "crash" in messages[-1].text:
        raise RuntimeError("the model is away")
    elif advised:
        output = ModelOutput.for_tool_call("mockllm", "lookup", {"key": "sum"}, content="I look.")
    else:
        output = ModelOutput.from_content("mockllm", "3")
    # Without it the package asks the network how to count tokens.
    output.usage = ModelUsage(input_tokens=10, output_tokens=2, total_tokens=12)
    return output


def evaluate(folder: str, samples: int, epochs: int, question: str, kind: Any) -> str:
    task = Task(
        name="sums",
        dataset=[Sample(id=f"sum-{number}", input=question, target="2") for number in range(samples)],
        solver=[use_tools(lookup()), advised_from_the_second_epoch(), generate()],
        scorer=right(),
        epochs=epochs,
    )
    model = get_model("mockllm/model", custom_outputs=scripted)
    [log] = run_inspect(task, model=model, log_dir=folder, log_format=kind, display="none", fail_on_error=False)
    return log.location


if __name__ == "__main__":
    for evaluation in json.loads(sys.argv[1]):
        sys.stdout.write(evaluate(*evaluation) + "\n")

"""Model of a scripted endpoint that plays every environment of the papers: badly and quickly, better with advice."""

import re
from collections.abc import Mapping, Sequence
from functools import cache

from retroformer.config.experiment import Experiment
from retroformer.environments.alfworld import taskset
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.environments.programming.environment import TESTS
from retroformer.method.prompts import PromptPack, load_pack
from tests.support.endpoint import Body, prompt_of

ADVICE = "I looked in the wrong place. Next time I look elsewhere."
_THOUGHT = re.compile(r"Thought (\d+):\s*$")
_SIGNATURE = re.compile(r"^\s*def (\w+)\(", re.MULTILINE)
_RUST_SIGNATURE = re.compile(r"^fn (\w+)\((.*)\) -> (isize|f64) \{", re.MULTILINE)
_NO_PROGRAM = f"{TESTS} I have no more."
"""Answer that ends an attempt without a program, so that nothing is run."""


class ScriptedModel:
    """Answers a prompt of any role of a config; its answers are a pure function of the prompt.

    It wins ALFWorld games with the opening of the first one at once and the others after advice, if it has their
    walkthroughs. It loses everywhere else. It writes programs at trial 0 only, which makes the retries quick.
    """

    def __init__(self, experiment: Experiment, walkthroughs: Mapping[str, Sequence[str]] | None = None) -> None:
        named = (experiment.actor.prompts, *(arm.prompts for arm in experiment.eval.arms.values() if arm.prompts))
        self._packs = [load_pack(name, experiment.environment.name) for name in named]
        self._pack = self._packs[0]
        self._environment = experiment.environment.name
        self._walkthroughs = walkthroughs or {}

    def __call__(self, body: Body) -> str:
        prompt = prompt_of(body).rstrip()
        if any(prompt.endswith(pack.ask.strip()) for pack in self._packs):
            return ADVICE
        if prompt.endswith("yes or no?"):
            return "No."
        if thought := _THOUGHT.search(prompt):
            number = int(thought[1])
            return f" I go on.\nAction {number}: {self._action(prompt, number)}"
        return self._command(prompt) if prompt.endswith(">") else self._code(prompt)

    def _action(self, prompt: str, number: int) -> str:
        """Return the next action of an attempt whose actions so far came from here."""
        match self._environment:
            case "hotpotqa":
                return "Search[Norway]" if number == 1 and "Search[" in self._pack.act else "Finish[yes]"
            case "webshop":
                return "search[shoes]"
        return "look"

    def _command(self, prompt: str) -> str:
        """Return the next line of an attempt in the layout of commands: a thought, then the actions that win."""
        for place, (opening, actions) in enumerate(self._walkthroughs.items()):
            if opening in prompt and (place == 0 or any(pack.remember.strip() in prompt for pack in self._packs)):
                made = prompt.rpartition(opening)[2].count("\n> ")
                return actions[made - 1] if made else "think: I go on."
        return "look"

    def _code(self, prompt: str) -> str:
        """Return one test of the agent's own, or a program that fails; a Rust function of numbers gets a test, too."""
        asked = _without_examples(self._pack, prompt)
        names, rust = _SIGNATURE.findall(asked), _RUST_SIGNATURE.findall(asked)
        if self._pack.tests.strip() in prompt:
            if rust:
                name, parameters, returned = rust[-1]
                arguments = ", ".join(["Default::default()"] * parameters.count(":"))
                return f"```\nassert_eq!({name}({arguments}), 2 as {returned});\n```"
            return f"```\nassert {names[-1]}(1) == 2\n```" if names else "I know no test."
        if self._pack.last_attempt.strip() in asked:
            return _NO_PROGRAM
        return f"```\ndef {names[-1]}(*arguments):\n    return None\n```" if names else "```\nfn nothing() {}\n```"


def walkthroughs_of(experiment: Experiment, count: int) -> Mapping[str, Sequence[str]]:
    """Return the winning actions of the first games of a config's split by their openings."""
    return _walkthroughs(experiment.environment.model_dump_json(), experiment.seed, count)


@cache
def _walkthroughs(section: str, seed: int, count: int) -> Mapping[str, Sequence[str]]:
    games = taskset(Alfworld.model_validate_json(section), seed)
    environment = games.environment()
    return {environment.reset(task).observation.strip(): games.walkthrough(task) for task in games.tasks()[:count]}


def _without_examples(pack: PromptPack, prompt: str) -> str:
    """Return a prompt of the actor without the pack's instructions and examples."""
    for text in (pack.act, pack.tests, *pack.examples):
        prompt = prompt.replace(text.strip(), "")
    return prompt

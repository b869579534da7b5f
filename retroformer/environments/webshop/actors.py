"""Shoppers, a small language model and a program, and arms whose advice is written by rule about requests."""

from typing import Literal

from retroformer.agents.arms.arm import Arm, ArmParts
from retroformer.endpoint.model import LanguageModel
from retroformer.environments.webshop import compact
from retroformer.environments.webshop.scripted_play import next_action, oracle_advice, read_advice, rule_advice, writer
from retroformer.method.protocols import Move, Reflector, Scene


class ShoppingActor:
    """Small language model, trained to shop on the compact text; its endpoint must serve completions, not chat."""

    def __init__(self, model: LanguageModel, temperature: float = 0.0) -> None:
        self.model, self.temperature = model, temperature

    async def act(self, scene: Scene) -> Move:
        """Return the next action on the site. Raises EndpointFailure."""
        completion = await self.model.complete(
            f"{compact.attempt(scene.opening, scene.steps, scene.memory.reflections)}>",
            temperature=self.temperature,
            max_new_tokens=compact.SHOPPING_TOKENS,
            stop=["\n"],
            seed=scene.seed if self.temperature else None,
        )
        searches = (compact.products(step.observation) for step in reversed(scene.steps))
        shown = next(filter(None, searches), ())
        return Move(action=compact.on_site(completion.text, shown), usage=completion.usage)


class RuleShopper:
    """Shopper that is a program: the scripted one, which reads the last advice in plain sentences."""

    async def act(self, scene: Scene) -> Move:
        """Return the next action on the site. Never raises."""
        advice = read_advice(" ".join(scene.memory.reflections[-1:]))
        return Move(action=next_action(scene.opening, scene.steps, scene.choices, advice))


class RequestRuleArm(Arm):
    """Advice written by rule from the request: all its words and options."""

    kind: Literal["rule"] = "rule"

    def build(self, parts: ArmParts) -> Reflector:
        return writer("whole-request", parts.render(), lambda failure, request, random: rule_advice(request))

    def describe(self) -> str:
        return "written by rule from the request: all its words and options"


class PurchaseOracleArm(Arm):
    """Advice written by rule from the wanted product."""

    reads_solution = True

    kind: Literal["oracle"] = "oracle"

    def build(self, parts: ArmParts) -> Reflector:
        walkthrough = parts.taskset().walkthrough
        return writer(
            "walkthrough", parts.render(), lambda failure, _, random: oracle_advice(walkthrough(failure.task))
        )

    def describe(self) -> str:
        return "a yardstick: words of the wanted product's title and its options, which no reflector sees"

"""Tests of the whole loop: which attempts and reflections are made, where it stops, and how an attempt ends."""

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import pytest

from retroformer.agents.arms.baselines import NoReflector
from retroformer.config.sections.base import CHAIN, Loop, RetryPlan
from retroformer.errors import EndpointFailure
from retroformer.method.protocols import Actor, Agent, Episode, Judgement, Move, Scene
from retroformer.method.records import Ending, Memory, Outcome, Reflection, Trajectory, Transition
from retroformer.method.rollout import improve, is_complete, rollout
from tests.support.characters import (
    CAPITAL,
    PRICE,
    ActorThatNeedsAdvice,
    ActorWithABadLine,
    ActorWithAPlan,
    Corridor,
    Riddle,
    advice,
    attempt_at,
)


class Course:
    """Script that gives `improve` the outcomes in `results[trial][candidate]` and records its calls."""

    def __init__(self, *results: Sequence[float | None], no_advice_for: Sequence[tuple[int, int]] = ()) -> None:
        self._results, self._no_advice_for = results, no_advice_for
        self.attempts: list[tuple[int, int, tuple[str, ...]]] = []
        self.advised: list[tuple[int, int, int]] = []

    async def attempt(self, memory: Memory, trial: int, candidate: int) -> Trajectory:
        self.attempts.append((trial, candidate, memory.reflections))
        reward = self._results[trial][candidate]
        if reward is None:
            return Trajectory.invalid(CAPITAL, "The school is closed.")
        return attempt_at(rewards=(reward,), outcome=Outcome.SUCCESS if reward == 1 else Outcome.FAILURE)

    async def advise(
        self, failure: Trajectory, memory: Memory, trial: int, candidate: int, previous: int
    ) -> Reflection:
        self.advised.append((trial, candidate, previous))
        if (trial, candidate) in self._no_advice_for:
            raise EndpointFailure("The model answered 500.")
        return advice(f"{trial}.{candidate}")


PAIR, TREE = RetryPlan(candidates=2), RetryPlan(candidates=2, branch="every")


def run_course(course: Course, plan: RetryPlan = PAIR, trials: int = 3, memory: int = 3) -> Course:
    asyncio.run(improve(course.attempt, course.advise, Loop(trials=trials, memory=memory), plan))
    return course


def play(episode: Episode, actor: Actor, loop: Loop | None = None, memory: Memory | None = None) -> Trajectory:
    return asyncio.run(rollout(CAPITAL, episode, Agent(actor, NoReflector()), memory or Memory(), loop or Loop()))


def test_every_failure_gets_its_candidates_and_each_is_tried() -> None:
    course = run_course(Course([0], [0, 0], [0, 0]))
    assert course.advised == [(1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0)]
    assert [(trial, candidate) for trial, candidate, _ in course.attempts] == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_success_at_trial_0_gets_no_reflection() -> None:
    course = run_course(Course([1]))
    assert course.attempts == [(0, 0, ())]
    assert course.advised == []


def test_no_reflection_is_written_after_the_last_trial() -> None:
    course = run_course(Course([0], [0], [0]), CHAIN)
    assert [trial for trial, _, _ in course.advised] == [1, 2]


def test_a_single_trial_gets_no_reflection() -> None:
    assert run_course(Course([0]), trials=1).advised == []


def test_the_chain_continues_from_the_accepted_retry() -> None:
    course = run_course(Course([0], [0.2, 0.6, 0.4], [0, 0, 0]), RetryPlan(candidates=3))
    assert course.advised[3:] == [(2, 0, 1), (2, 1, 1), (2, 2, 1)]
    assert course.attempts[-1] == (2, 2, ("1.1", "2.2"))


def test_the_first_of_equal_retries_is_accepted() -> None:
    assert run_course(Course([0], [0.3, 0.3], [0, 0])).advised[-1] == (2, 1, 0)


def test_the_chain_ends_if_any_candidate_succeeds() -> None:
    course = run_course(Course([0], [0, 1], [0, 0]))
    assert max(trial for trial, _, _ in course.attempts) == 1


def test_an_invalid_retry_stops_the_chain_even_beside_a_better_one() -> None:
    course = run_course(Course([0], [0.5, None], [0, 0]))
    assert max(trial for trial, _, _ in course.attempts) == 1
    assert len(course.advised) == 2


def test_with_branches_every_failed_retry_gets_reflections_of_its_own() -> None:
    course = run_course(Course([0], [0.2, 1, 0.1], [0] * 9), RetryPlan(candidates=3, branch="every"))
    assert course.advised[3:] == [(2, 0, 0), (2, 1, 0), (2, 2, 0), (2, 6, 2), (2, 7, 2), (2, 8, 2)]
    assert course.attempts[-1] == (2, 8, ("1.2", "2.8"))


def test_with_branches_the_memory_holds_the_way_to_the_failure() -> None:
    memories = {}

    async def advise(failure: Trajectory, memory: Memory, trial: int, candidate: int, previous: int) -> Reflection:
        memories[trial, candidate] = [(lesson.attempt.episode_return, lesson.advice) for lesson in memory.earlier]
        return advice(f"{trial}.{candidate}")

    course = Course([0], [0.2, 0.1], [0] * 4)
    asyncio.run(improve(course.attempt, advise, Loop(trials=3), TREE))
    assert memories[1, 1] == []
    assert memories[2, 3] == [(0, "1.1")]


def test_an_unadvised_retry_is_one_more_candidate_that_the_loop_never_goes_on_from() -> None:
    course = run_course(Course([0], [0.2, 0.1, 0.9], [0] * 9), RetryPlan(unadvised=True))
    assert course.advised == [(1, 0, 0), (1, 1, 0), (1, 2, 0), (2, 0, 0), (2, 1, 0), (2, 2, 0)]
    course = run_course(Course([0], [0.2, 0.1, 0.9], [0] * 9), RetryPlan(unadvised=True, branch="every"))
    assert course.advised[3:] == [(2, 0, 0), (2, 1, 0), (2, 2, 0), (2, 3, 1), (2, 4, 1), (2, 5, 1)]


@pytest.mark.parametrize("plan", [PAIR, TREE])
@pytest.mark.parametrize("results", [([0], [0.2, 0], [0] * 4), ([0], [0.2, 1], [0] * 4), ([0], [1, 1]), ([1],)])
def test_a_task_is_complete_once_no_fact_of_the_loop_is_missing(
    plan: RetryPlan, results: Sequence[Sequence[float]]
) -> None:
    course = run_course(Course(*results), plan)
    attempts = {
        (trial, candidate, 0): attempt_at(
            rewards=(results[trial][candidate],),
            outcome=Outcome.SUCCESS if results[trial][candidate] == 1 else Outcome.FAILURE,
        )
        for trial, candidate, _ in course.attempts
    }
    advised = {(trial, candidate) for trial, candidate, _ in course.advised}
    assert is_complete(attempts, advised, 3, plan)
    for key in attempts:
        fewer = {other: attempt for other, attempt in attempts.items() if other != key}
        assert not is_complete(fewer, advised, 3, plan), key
    for place in advised:
        assert not is_complete(attempts, advised - {place}, 3, plan), place


def test_an_invalid_first_trial_is_not_reflected_upon() -> None:
    assert run_course(Course([None])).advised == []


def test_memory_carries_no_more_than_its_capacity_through_the_chain() -> None:
    course = run_course(Course([0], [0], [0], [0]), CHAIN, trials=4, memory=2)
    assert [memory for _, _, memory in course.attempts] == [(), ("1.0",), ("1.0", "2.0"), ("2.0", "3.0")]


def test_if_one_reflection_fails_the_other_candidates_are_still_written() -> None:
    course = Course([0], [0, 0], no_advice_for=[(1, 0)])
    with pytest.raises(EndpointFailure):
        run_course(course)
    assert course.advised == [(1, 0, 0), (1, 1, 0)]
    assert course.attempts == [(0, 0, ())]


def test_a_reflection_on_the_first_failure_wins_the_second_trial() -> None:
    outcomes = []

    async def attempt(memory: Memory, trial: int, candidate: int) -> Trajectory:
        made = await rollout(CAPITAL, Riddle(), Agent(ActorThatNeedsAdvice(), NoReflector()), memory, Loop())
        outcomes.append(made.outcome)
        return made

    async def advise(failure: Trajectory, *_: object) -> Reflection:
        return advice("Say Paris.")

    asyncio.run(improve(attempt, advise, Loop()))  # type: ignore[arg-type]
    assert outcomes == [Outcome.FAILURE, Outcome.SUCCESS]


class Harsh:
    """Evaluator for which every attempt failed."""

    async def judge(self, attempt: Trajectory, last: Transition) -> Judgement:
        return Judgement(solved=False, usage=PRICE)


def test_the_judgement_is_stored_beside_the_true_outcome_with_its_cost() -> None:
    agent = Agent(ActorThatNeedsAdvice(), NoReflector(), Harsh())
    made = asyncio.run(rollout(CAPITAL, Riddle(), agent, Memory(reflections=("Paris!",)), Loop()))
    assert (made.outcome, made.judged, made.failed) == (Outcome.SUCCESS, False, True)
    assert made.usage == PRICE + PRICE


def test_an_invalid_attempt_is_not_judged() -> None:
    agent = Agent(ActorWithABadLine(from_step=1), NoReflector(), Harsh())
    made = asyncio.run(rollout(CAPITAL, Corridor(), agent, Memory(), Loop()))
    assert (made.outcome, made.judged, made.failed) == (Outcome.INVALID, None, False)


@pytest.mark.parametrize(("judged", "trials"), [(True, [0]), (False, [0, 1, 2]), (None, [0, 1, 2])])
def test_an_agent_retries_until_its_own_evaluator_is_satisfied(judged: bool | None, trials: list[int]) -> None:
    tried = []

    async def attempt(memory: Memory, trial: int, candidate: int) -> Trajectory:
        tried.append(trial)
        return attempt_at().model_copy(update={"judged": judged})

    async def advise(*_: object) -> Reflection:
        return advice("Again.")

    asyncio.run(improve(attempt, advise, Loop()))  # type: ignore[arg-type]
    assert tried == trials


@pytest.mark.parametrize("carried", [True, False])
def test_memory_carries_the_last_attempt_if_the_config_says_so(carried: bool) -> None:
    seen = list[Trajectory | None]()

    async def attempt(memory: Memory, trial: int, candidate: int) -> Trajectory:
        seen.append(memory.last_trajectory)
        return attempt_at(rewards=(trial / 10,))

    async def advise(*_: object) -> Reflection:
        return advice("Again.")

    asyncio.run(improve(attempt, advise, Loop(last_attempt=carried)))  # type: ignore[arg-type]
    expected = [attempt_at(rewards=(0.0,)), attempt_at(rewards=(0.1,))] if carried else [None, None]
    assert seen == [None, *expected]


def test_a_solved_episode_is_a_success_with_its_return() -> None:
    solved = play(Riddle(), ActorThatNeedsAdvice(), memory=Memory(reflections=("Paris!",)))
    assert (solved.outcome, solved.ending, solved.episode_return) == (Outcome.SUCCESS, Ending.SOLVED, 1.0)
    assert solved.opening == "What is the capital of France?"
    assert solved.usage == PRICE


def test_a_wrong_final_answer_is_a_failure_that_terminated() -> None:
    wrong = play(Riddle(), ActorThatNeedsAdvice())
    assert (wrong.outcome, wrong.ending, wrong.episode_return) == (Outcome.FAILURE, Ending.TERMINATED, 0.0)


def test_the_environment_ends_an_episode_at_its_step_limit() -> None:
    ended = play(Corridor(length=4), ActorWithAPlan("walk"))
    assert (ended.outcome, ended.ending, len(ended.steps)) == (Outcome.FAILURE, Ending.STEP_LIMIT, 4)


def test_an_actor_that_wants_more_than_epsilon_actions_is_stopped() -> None:
    ended = play(Corridor(), ActorWithAPlan("walk"), Loop(actions=7))
    assert (ended.ending, len(ended.steps)) == (Ending.TOO_MANY_ACTIONS, 7)


def test_the_same_answer_to_the_same_action_more_than_omega_times_ends_an_attempt() -> None:
    ended = play(Corridor(), ActorWithAPlan("walk", "wait"), Loop(repetitions=3))
    assert (ended.ending, len(ended.steps)) == (Ending.REPETITION, 1 + 4)


def test_the_same_action_with_new_answers_is_no_repetition() -> None:
    assert play(Corridor(length=12), ActorWithAPlan("walk"), Loop(repetitions=3)).ending is Ending.STEP_LIMIT


def test_intermediate_rewards_add_up_even_in_a_failure() -> None:
    failed = play(Corridor(length=3, rewards=(0.25, 0.5)), ActorWithAPlan("walk"))
    assert (failed.outcome, failed.episode_return) == (Outcome.FAILURE, 0.75)


def test_every_step_has_a_different_seed() -> None:
    class Noting:
        seeds: ClassVar[list[int]] = []

        async def act(self, scene: Scene) -> Move:
            self.seeds.append(scene.seed)
            return Move(action="walk")

    asyncio.run(rollout(CAPITAL, Corridor(3), Agent(Noting(), NoReflector()), Memory(), Loop(), seed=70))
    assert Noting.seeds == [70, 71, 72]


def test_a_failing_environment_makes_the_attempt_invalid_with_its_cause() -> None:
    broken = play(Corridor(), ActorWithAPlan("walk", "jump"))
    assert (broken.outcome, broken.ending) == (Outcome.INVALID, Ending.INFRASTRUCTURE)
    assert broken.cause == "The corridor fell into the void."
    assert len(broken.steps) == 1


def test_a_failing_endpoint_makes_the_attempt_invalid_and_its_cost_is_counted() -> None:
    broken = play(Corridor(), ActorWithABadLine(from_step=2))
    assert broken.outcome is Outcome.INVALID
    assert "answered 500" in broken.cause
    assert broken.usage == PRICE + PRICE


def test_a_bug_of_our_own_is_not_an_invalid_outcome() -> None:
    class ActorWithABug:
        async def act(self, scene: object) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(Riddle(), ActorWithABug())  # type: ignore[arg-type]

"""The best of several answers: read by the reward model as in training, chosen by its scores, the same every time."""

import asyncio
import queue
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest
import torch

from retroformer.errors import MissingInput
from retroformer.provenance import Provenance, folder_sha256
from serve.best_of import write_best
from serve.engine import Engine
from serve.generation import Generation, Output, Transcript
from serve.model import Model
from serve.request import seeds
from serve.sampling import Sampling
from serve.scoring import Scoring
from tests.serve.running import Endpoint, start
from tests.support.judged import ScoresOfTraining, judged_run
from tests.train.world import prompt

ASKED = "Find the mug"
TEXTS = ("Look in the fridge.", "Dance on the sofa.", "", "é?", "Go to cabinet 1, then 2, then 3. " * 4)
TOKENS = 24
ENDLESS = 8000
"""Tokens: seconds of work; without stop tokens it does not end sooner by itself."""
PATIENCE_SECONDS = 300.0
"""Longer than anything takes here on a loaded machine."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    serve = {"port": 0, "best_of": ["sft+best8", "sft+best2", "base+best3"]}
    return judged_run(tmp_path_factory.mktemp("judged"), serve=serve)


@pytest.fixture(scope="module")
def run(page: Path) -> Path:
    return page.parent / "runs/judged"


@pytest.fixture(scope="module")
def trained(page: Path, run: Path) -> ScoresOfTraining:
    return ScoresOfTraining(page, run / "reward")


@pytest.fixture(scope="module")
def model(page: Path, run: Path) -> Model:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft asks transformers by an old name.
        return Model(page.parent / "tiny", {"writer": run / "sft"}, "float32", {"judge": run / "reward"})


def wait_for(engine: Engine, requests: list[Generation | Scoring]) -> None:
    outputs: queue.Queue[Output] = queue.Queue()
    for request in requests:
        request.deliver = outputs.put
        engine.submit(request)
    assert [outputs.get(timeout=PATIENCE_SECONDS).failure for _ in requests] == [""] * len(requests)


def becomes_true(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def writing(model: Model, asked: str) -> Generation:
    return Generation(
        prompt=model.encode(model.render([{"role": "user", "content": asked}])),
        adapter="writer",
        limit=TOKENS,
        sampling=Sampling(temperature=0),
        stop_tokens=frozenset(),
        transcript=Transcript(model.decode, ()),
        deliver=lambda output: None,
        generator=torch.Generator(),
    )


def test_scores_are_those_of_training_also_beside_answers_that_stay_as_they_are(
    model: Model, trained: ScoresOfTraining
) -> None:
    expected = trained(ASKED, TEXTS)
    assert max(expected) - min(expected) > 0.1
    alone, beside = ([writing(model, ASKED), writing(model, "Heat an egg")] for _ in range(2))
    wait_for(Engine(model, 16), [*alone])
    opening = model.encode(model.render([turn.model_dump() for turn in prompt(ASKED)]))
    engine = Engine(model, 16)
    for _ in range(2):  # The second time most of what is read is kept.
        readings = [Scoring([*opening, *model.turn(text)], "judge") for text in TEXTS]
        wait_for(engine, [beside[0], *readings, beside[1]])
        assert [reading.score for reading in readings] == pytest.approx(expected, abs=1e-4)
        assert [one.tokens for one in beside] == [one.tokens for one in alone]
        beside = [writing(model, ASKED), writing(model, "Heat an egg")]
    assert engine.load == 0


def test_whoever_stops_waiting_frees_all_rows(model: Model) -> None:
    engine = Engine(model, 4)
    candidates = [replace(writing(model, asked), limit=ENDLESS) for asked in (ASKED, "Heat an egg", "Look at the mug")]

    async def leave() -> None:
        waiting = asyncio.create_task(write_best(engine, model, candidates, "judge"))
        assert await asyncio.to_thread(becomes_true, lambda: all(one.tokens for one in candidates))
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(leave())
    later = writing(model, ASKED)
    wait_for(engine, [later])
    assert len(later.tokens) == TOKENS
    assert becomes_true(lambda: engine.load == 0)
    assert all(len(one.tokens) < ENDLESS for one in candidates)


def test_a_judge_needs_no_other_adapter_but_a_score_head(
    page: Path, run: Path, model: Model, trained: ScoresOfTraining
) -> None:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        alone = Model(page.parent / "tiny", {}, "float32", {"judge": run / "reward"})
        with pytest.raises(MissingInput, match=r"'sft' .* cannot be loaded \(.*it has no score head"):
            Model(page.parent / "tiny", {}, "float32", {"judge": run / "sft"})
    opening = model.encode(model.render([turn.model_dump() for turn in prompt(ASKED)]))
    reading = Scoring([*opening, *model.turn(TEXTS[0])], "judge")
    wait_for(Engine(alone, 1), [reading])
    assert reading.score == pytest.approx(trained(ASKED, TEXTS[:1])[0], abs=1e-4)


@pytest.fixture(scope="module")
def endpoint(page: Path) -> Iterator[Endpoint]:
    process = start(page.parent, page=page.read_text())
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert " at " in line, process.communicate()[1]
    yield Endpoint(process, line, page.parent / "runs/judged/logs")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=endpoint.url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, model: str, seed: int, temperature: float = 1.0) -> tuple[str, int]:
    """The answer to `prompt(ASKED)`, and how many tokens it took."""
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt(ASKED)[0].content}],
        temperature=temperature,
        max_tokens=TOKENS,
        stop=[f"<|seed:{seed}|>"],
    )
    assert answer.usage is not None
    return answer.choices[0].message.content or "", answer.usage.completion_tokens


def seeds_of(seed: int, count: int) -> list[int]:
    return seeds({"stop": [f"<|seed:{seed}|>"]}, count)


def test_the_answer_is_the_one_that_training_scores_highest(client: openai.OpenAI, trained: ScoresOfTraining) -> None:
    for model, count in (("sft", 8), ("base", 3)):
        answers = [ask(client, model, seed) for seed in seeds_of(5, count)]
        texts = list(dict.fromkeys(text.strip() for text, _ in answers))
        assert len(texts) > 1
        scores = dict(zip(texts, trained(ASKED, texts), strict=True))
        best, tokens = ask(client, f"{model}+best{count}", 5)
        assert scores[best.strip()] == max(scores.values())
        assert tokens == sum(count for _, count in answers)


def test_a_seed_repeats_the_choice_alone_and_beside_others(client: openai.OpenAI) -> None:
    alone = [ask(client, "sft+best8", seed) for seed in range(3)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: ask(client, "sft+best8", seed), range(4)))
    assert together[:3] == alone
    assert len(set(together)) > 1


def test_fewer_answers_are_the_first_of_more() -> None:
    assert seeds_of(5, 8)[:2] == seeds_of(5, 2)
    assert seeds_of(5, 1) == [5]
    assert len({*seeds_of(5, 8), *seeds_of(6, 8)}) == 16


def test_without_chance_there_is_one_answer(client: openai.OpenAI) -> None:
    assert ask(client, "sft+best8", 0, temperature=0.0) == ask(client, "sft", 0, temperature=0.0)


def test_a_stream_brings_the_choice_at_once(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sft+best8",
        messages=[{"role": "user", "content": prompt(ASKED)[0].content}],
        max_tokens=TOKENS,
        stop=["<|seed:1|>"],
        temperature=1.0,
        stream=True,
    )
    pieces = [piece for chunk in stream if (piece := chunk.choices[0].delta.content)]
    # FastChat leaves out of streams what is no character.
    assert pieces == [ask(client, "sft+best8", 1)[0].replace("\ufffd", "")]


def test_provenance_has_both_hashes_and_a_pinned_name_for_them(endpoint: Endpoint, page: Path, run: Path) -> None:
    said = Provenance.model_validate(httpx.get(endpoint.url.replace("/v1", "/provenance")).json())
    sft, reward = folder_sha256(run / "sft"), folder_sha256(run / "reward")
    best, base = said.models["sft+best8"], said.models["base+best3"]
    assert (best.adapter_sha256, best.reward_sha256) == (sft, reward)
    assert (base.adapter_sha256, base.reward_sha256) == (None, reward)
    assert said.models["sft"].reward_sha256 is None
    assert best.trained_sha256 not in (sft, reward, base.trained_sha256)
    pinned = f"sft+best8@{str(best.trained_sha256)[:12]}"
    assert said.models[pinned] == best
    with openai.OpenAI(base_url=endpoint.url, api_key="none", max_retries=0) as client:
        assert ask(client, pinned, 3) == ask(client, "sft+best8", 3)

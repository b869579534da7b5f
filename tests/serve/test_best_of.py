"""Best-of-n: candidates are scored as in training, the best one is chosen, and the choice is reproducible."""

import asyncio
import queue
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import openai
import pytest
import torch

from retroformer.errors import MissingInput
from retroformer.run.provenance import Provenance, folder_sha256
from serve.answers import seeds, write_best
from serve.engine.engine import Engine
from serve.engine.generation import DecodedText, Output, Scoring, TextGeneration
from serve.engine.model import Model
from serve.engine.sampling import SamplingParameters
from tests.serve.running import Endpoint, http_request, ready_line, start
from tests.support.judged import ScoresOfTraining, judged_run
from tests.support.waiting import becomes_true
from tests.train.world import prompt

ASKED = "Find the mug"
TEXTS = ("Look in the fridge.", "Dance on the sofa.", "", "é?", "Go to cabinet 1, then 2, then 3. " * 4)
TOKENS = 24
ENDLESS = 8000
"""Number of tokens that takes seconds; without stop tokens a generation does not end sooner."""
PATIENCE_SECONDS = 300.0
"""Upper bound for anything here on a loaded machine."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    serve = {"port": 0, "best_of": ["sft+best8", "sft+best2", "base+best3"]}
    return judged_run(tmp_path_factory.mktemp("judged"), serve=serve)


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    return config.parent / "runs/judged"


@pytest.fixture(scope="module")
def trained(config: Path, run: Path) -> ScoresOfTraining:
    return ScoresOfTraining(config, run / "reward")


@pytest.fixture(scope="module")
def model(config: Path, run: Path) -> Model:
    with warnings.catch_warnings(
        action="ignore", category=FutureWarning
    ):  # peft uses a deprecated name of transformers.
        return Model(config.parent / "tiny", {"writer": run / "sft"}, "float32", {"judge": run / "reward"})


def wait_for(engine: Engine, requests: list[TextGeneration | Scoring]) -> None:
    outputs: queue.Queue[Output] = queue.Queue()
    for request in requests:
        request.deliver = outputs.put
        engine.submit(request)
    assert [outputs.get(timeout=PATIENCE_SECONDS).failure for _ in requests] == [""] * len(requests)


def writing(model: Model, asked: str) -> TextGeneration:
    return TextGeneration(
        prompt=model.encode(model.render([{"role": "user", "content": asked}])),
        adapter="writer",
        limit=TOKENS,
        sampling=SamplingParameters(temperature=0),
        stop_tokens=frozenset(),
        transcript=DecodedText(model.decode, ()),
        deliver=lambda output: None,
        generator=torch.Generator(),
    )


def test_scores_equal_those_of_training_beside_unchanged_answers(model: Model, trained: ScoresOfTraining) -> None:
    expected = trained(ASKED, TEXTS)
    assert max(expected) - min(expected) > 0.1
    alone, beside = ([writing(model, ASKED), writing(model, "Heat an egg")] for _ in range(2))
    wait_for(Engine(model, 16), [*alone])
    opening = model.encode(model.render([turn.model_dump() for turn in prompt(ASKED)]))
    engine = Engine(model, 16)
    for _ in range(2):  # The second time most of the prompts are cached.
        readings = [Scoring([*opening, *model.turn(text)], "judge") for text in TEXTS]
        wait_for(engine, [beside[0], *readings, beside[1]])
        assert [reading.score for reading in readings] == pytest.approx(expected, abs=1e-4)
        assert [candidate.tokens for candidate in beside] == [candidate.tokens for candidate in alone]
        beside = [writing(model, ASKED), writing(model, "Heat an egg")]
    assert engine.load == 0


def test_a_caller_that_stops_waiting_frees_all_rows(model: Model) -> None:
    engine = Engine(model, 4)
    candidates = [replace(writing(model, asked), limit=ENDLESS) for asked in (ASKED, "Heat an egg", "Look at the mug")]

    async def leave() -> None:
        waiting = asyncio.create_task(write_best(engine, model, candidates, "judge"))
        assert await asyncio.to_thread(becomes_true, lambda: all(candidate.tokens for candidate in candidates))
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(leave())
    later = writing(model, ASKED)
    wait_for(engine, [later])
    assert len(later.tokens) == TOKENS
    assert becomes_true(lambda: engine.load == 0)
    assert all(len(candidate.tokens) < ENDLESS for candidate in candidates)


def test_a_reward_model_needs_no_other_adapter_but_a_score_head(
    config: Path, run: Path, model: Model, trained: ScoresOfTraining
) -> None:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        alone = Model(config.parent / "tiny", {}, "float32", {"judge": run / "reward"})
        with pytest.raises(MissingInput, match=r"'sft' .* cannot be loaded \(.*it has no score head"):
            Model(config.parent / "tiny", {}, "float32", {"judge": run / "sft"})
    opening = model.encode(model.render([turn.model_dump() for turn in prompt(ASKED)]))
    reading = Scoring([*opening, *model.turn(TEXTS[0])], "judge")
    wait_for(Engine(alone, 1), [reading])
    assert reading.score == pytest.approx(trained(ASKED, TEXTS[:1])[0], abs=1e-4)


@pytest.fixture(scope="module")
def endpoint(config: Path) -> Iterator[Endpoint]:
    process = start(config.parent, config=config.read_text())
    yield Endpoint(process, ready_line(process), config.parent / "runs/judged/logs")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def client(endpoint: Endpoint) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=endpoint.url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, model: str, seed: int, temperature: float = 1.0) -> tuple[str, int]:
    """Return the answer to `prompt(ASKED)` and its number of tokens."""
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt(ASKED)[0].content}],
        temperature=temperature,
        max_tokens=TOKENS,
        seed=seed,
    )
    assert answer.usage is not None
    return answer.choices[0].message.content or "", answer.usage.completion_tokens


def seeds_of(seed: int, count: int) -> list[int]:
    return seeds(seed, 0, count)


def test_the_answer_is_the_candidate_with_the_highest_training_score(
    client: openai.OpenAI, trained: ScoresOfTraining
) -> None:
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


def test_fewer_candidates_are_the_first_of_more() -> None:
    assert seeds_of(5, 8)[:2] == seeds_of(5, 2)
    assert seeds_of(5, 1) == [5]
    assert len({*seeds_of(5, 8), *seeds_of(6, 8)}) == 16


def test_greedy_sampling_gives_a_single_candidate(client: openai.OpenAI) -> None:
    assert ask(client, "sft+best8", 0, temperature=0.0) == ask(client, "sft", 0, temperature=0.0)


def test_a_stream_returns_the_choice_in_one_piece(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sft+best8",
        messages=[{"role": "user", "content": prompt(ASKED)[0].content}],
        max_tokens=TOKENS,
        seed=1,
        temperature=1.0,
        stream=True,
    )
    pieces = [piece for chunk in stream if (piece := chunk.choices[0].delta.content)]
    assert pieces == [ask(client, "sft+best8", 1)[0]]


def test_provenance_has_both_hashes_and_a_pinned_name_for_them(
    endpoint: Endpoint, client: openai.OpenAI, config: Path, run: Path
) -> None:
    provenance = Provenance.model_validate(http_request("GET", endpoint.url.replace("/v1", "/provenance")).json())
    sft, reward = folder_sha256(run / "sft"), folder_sha256(run / "reward")
    best, base = provenance.models["sft+best8"], provenance.models["base+best3"]
    assert (best.adapter_sha256, best.reward_sha256) == (sft, reward)
    assert (base.adapter_sha256, base.reward_sha256) == (None, reward)
    assert provenance.models["sft"].reward_sha256 is None
    assert best.trained_sha256 not in (sft, reward, base.trained_sha256)
    pinned = f"sft+best8@{str(best.trained_sha256)[:12]}"
    assert provenance.models[pinned] == best
    assert ask(client, pinned, 3) == ask(client, "sft+best8", 3)

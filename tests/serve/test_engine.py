"""Tests of the engine without HTTP, on the real small model and on a sketch: batches, prefixes, errors."""

import queue
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from serve.engine.engine import Engine
from serve.engine.generation import Output, Scoring
from serve.engine.model import BASE, Model, PassResult
from serve.engine.prefixes import Geometry
from serve.engine.sampling import SamplingParameters
from serve.engine.slots import KeyValueSlots
from tests.serve.clients import ENDLESS, GREEDY, PATIENCE_SECONDS, PROMPTS, Client, loaded
from tests.support.waiting import becomes_true

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = (BASE, "first", "second")
ACTIONS = tuple(f" go to {place}\n" for place in ("fridge 1", "cabinet 1", "cabinet 10", "sinkbasin 1", "drawer 4"))
FILLING = 2_000_000
"""Number of tokens with which a request leaves no room for another beside it."""


@pytest.fixture(scope="module")
def real(base: Path, adapters: dict[str, Path]) -> Model:
    return loaded(base, adapters)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_greedy_tokens_are_those_of_transformers_own_generate(
    real: Model, base: Path, adapters: dict[str, Path]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    prompt = torch.tensor([real.encode(PROMPTS[1])])
    reference = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
    for adapter in (BASE, "first"):
        if adapter != BASE:
            reference = PeftModel.from_pretrained(reference, str(adapters[adapter])).eval()
        expected = reference.generate(input_ids=prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :]
        assert Client(real).send(PROMPTS[1], adapter).wait() == expected.tolist()


@pytest.mark.parametrize("kind", ["real", "model"])
def test_tokens_are_the_same_alone_cached_and_in_a_mixed_batch(kind: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(kind)
    requests = [(prompt, NAMES[index % 3]) for index, prompt in enumerate(PROMPTS)]
    alone = [Client(model).send(*request).wait() for request in requests]
    client = Client(model)
    pending = [client.send(*request) for request in requests]
    assert [request.wait() for request in pending] == alone
    cached = [client.send(*request) for request in requests]
    assert [request.wait() for request in cached] == alone
    assert all(request.generation.cached_tokens > 0 for request in cached if len(request.generation.prompt) > 16)


def test_a_seed_repeats_a_sample_whatever_else_is_in_the_batch(model: Model) -> None:
    sampling = SamplingParameters(temperature=1.0, top_p=0.95)
    alone = [Client(model).send(prompt, sampling=sampling, seed=7).wait() for prompt in PROMPTS[:3]]
    client = Client(model)
    pending = [client.send(prompt, NAMES[1], sampling=sampling, seed=8) for prompt in PROMPTS]
    pending = [client.send(prompt, sampling=sampling, seed=7) for prompt in PROMPTS[:3]]
    assert [request.wait() for request in pending] == alone


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParameters(temperature=1.0)])
def test_rows_with_and_without_choices_give_the_same_tokens_in_a_batch_as_alone(
    model: Model, sampling: SamplingParameters
) -> None:
    kinds = ((), ACTIONS, (" yes", " no", " yes and no"), (), ACTIONS[:1])
    requests = [(prompt, NAMES[index % 3], 8, sampling, index) for index, prompt in enumerate(PROMPTS)]
    requests += [(PROMPTS[1], "first", 8, sampling, seed) for seed in range(5, 10)]
    alone = [Client(model).send(*request, choices=kinds[i % 5]).wait() for i, request in enumerate(requests)]
    client = Client(model)
    pending = [client.send(*request, choices=kinds[i % 5]) for i, request in enumerate(requests)]
    assert [request.wait() for request in pending] == alone
    for index, tokens in enumerate(alone):
        assert not kinds[index % 5] or model.decode(tokens) in kinds[index % 5]


def test_the_request_after_a_row_with_choices_is_unaffected_by_its_cache(model: Model) -> None:
    client = Client(model)
    first = client.send(PROMPTS[1], "first", choices=ACTIONS)
    text = PROMPTS[1] + model.decode(first.wait()) + "bread 1, knife 2, plate 1, fork 3, spoon 1\n>"
    second = client.send(text, "first")
    assert second.wait() == Client(model).send(text, "first").wait()
    assert second.generation.cached_tokens >= len(first.generation.prompt) - 16


def test_forced_tokens_cost_no_step(model: Model) -> None:
    client = Client(model)
    only = client.send(PROMPTS[0], choices=(" a long way to the only answer\n",))
    assert model.decode(only.wait()) == " a long way to the only answer\n"
    text = PROMPTS[0] + " a long way to the only answer\n and back"
    after = client.send(text, tokens=1)
    after.wait()
    assert after.generation.cached_tokens <= len(only.generation.prompt)


def test_a_short_request_joins_a_long_one_and_leaves_before_it(model: Model) -> None:
    client = Client(model)
    long = client.send(PROMPTS[1], tokens=ENDLESS)
    assert long.goes_on()
    assert len(client.send(PROMPTS[0], tokens=3).wait()) == 3
    assert long.outputs.empty()
    assert long.goes_on()
    assert 3 < len(long.let_end()) < ENDLESS


def test_equal_prompts_at_once_are_computed_once(model: Model) -> None:
    client = Client(model)
    busy = client.send(PROMPTS[0], tokens=FILLING)
    assert busy.goes_on()
    beside, *same = [client.send(prompt) for prompt in (PROMPTS[0], *6 * [PROMPTS[1]])]
    assert not any(request.generation.tokens for request in same)
    busy.generation.cancelled = True
    assert len({tuple(request.wait()) for request in same}) == 1
    length = len(same[0].generation.prompt)
    assert sorted(request.generation.cached_tokens for request in same) == [0] + 5 * [length - 1]
    assert len(beside.wait()) == 12


def test_the_next_turn_of_a_conversation_computes_only_what_is_new(real: Model) -> None:
    client = Client(real)  # Unlike a sketch's text, its text is encoded to the same tokens that were written.
    first = client.send(PROMPTS[1], tokens=20)
    text = PROMPTS[1] + real.decode(first.wait()) + " and then?"
    second = client.send(text, tokens=1)
    second.wait()
    assert second.generation.cached_tokens >= len(first.generation.prompt)


def test_more_requests_than_rows_wait_their_turn(model: Model) -> None:
    client = Client(model, max_batch=2)
    pending = [client.send(prompt, tokens=4) for prompt in PROMPTS]
    assert all(len(request.wait()) == 4 for request in pending)


def test_a_cancelled_request_frees_its_row(model: Model) -> None:
    client = Client(model, max_batch=1)
    long = client.send(PROMPTS[0], tokens=ENDLESS)
    assert long.goes_on()
    long.generation.cancelled = True
    assert len(client.send(PROMPTS[0], tokens=2).wait()) == 2
    assert client.becomes_idle()


def test_an_error_in_a_prompt_fails_only_its_own_request_and_leaks_no_row(model: Model) -> None:
    client = Client(model, max_batch=2)
    good = client.send(PROMPTS[3], tokens=ENDLESS)
    assert good.goes_on()
    bad = client.send("never seen before: " + PROMPTS[0], "no such adapter")
    assert "no such adapter" in bad.failure()
    assert good.goes_on()
    assert len(good.let_end()) < ENDLESS
    require_two_free_rows(client)


def test_an_error_while_a_row_is_given_fails_only_its_own_request(model: Model) -> None:
    client, outputs = Client(model), queue.Queue[Output]()
    good = client.send(PROMPTS[3], tokens=ENDLESS)
    assert good.goes_on()
    client.engine.submit(Scoring([1 << 64] * 32, BASE, deliver=outputs.put))
    assert "OverflowError" in outputs.get(timeout=PATIENCE_SECONDS).failure
    assert good.goes_on()
    assert len(good.let_end()) < ENDLESS


def test_an_error_while_decoding_fails_all_running_requests_and_leaks_no_row(model: Model) -> None:
    client = Client(model, max_batch=2)
    good = client.send(PROMPTS[3], tokens=ENDLESS)
    assert good.goes_on()
    bad = client.send(PROMPTS[0], tokens=ENDLESS)
    assert bad.goes_on()
    bad.generation.adapter = "no such adapter"
    assert "no such adapter" in bad.failure()
    assert good.failure()
    require_two_free_rows(client)


class ModelThatStops(Model):
    """Model that blocks each pass until it is released, and then fails."""

    def __init__(self) -> None:
        self.geometry = Geometry(1, 1, 1, torch.float32, torch.device("cpu"))
        self.context_tokens = 8
        self.goes_on = threading.Event()

    def forward(self, columns: Sequence[Sequence[int]], slots: KeyValueSlots, adapters: Sequence[str]) -> PassResult:
        self.goes_on.wait()
        raise ValueError("stopped")


def test_the_duration_of_the_current_pass_can_be_read() -> None:
    model = ModelThatStops()
    engine = Engine(model, max_batch=1)
    outputs: queue.Queue[Output] = queue.Queue()
    try:
        assert (engine.alive, engine.pass_seconds) == (True, 0)
        engine.submit(Scoring([1, 2], BASE, deliver=outputs.put))
        assert becomes_true(lambda: engine.pass_seconds > 0.1)
        before = engine.pass_seconds
        assert becomes_true(lambda: engine.pass_seconds > before)
    finally:
        model.goes_on.set()
    assert outputs.get(timeout=PATIENCE_SECONDS).failure == "ValueError: stopped"
    assert becomes_true(lambda: engine.pass_seconds == 0)


def require_two_free_rows(client: Client) -> None:
    assert client.becomes_idle()
    both = [client.send(prompt, tokens=2) for prompt in PROMPTS[:2]]
    assert all(len(request.wait()) == 2 for request in both)

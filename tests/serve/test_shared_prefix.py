"""Rows with one stored prefix read it together, and get what each row would get by itself."""

from collections.abc import Sequence

import pytest
import torch

from serve.engine.model import BASE, Model
from serve.engine.prefixes import BlockNames, PrefixStore
from serve.engine.sampling import SamplingParameters
from serve.engine.slots import KeyValueSlots
from tests.serve.clients import ENDLESS, PLACES, Client, Pending
from tests.support.waiting import becomes_true

pytestmark = pytest.mark.usefixtures("one_thread")
STORY = f"Room: {PLACES}\n" + "".join(f"> go to cabinet {number}\nit is closed\n" for number in range(12))
"""A beginning of about 200 tokens."""
OTHER = STORY.replace("cabinet", "drawer")[len(STORY) // 3 :]


def empty_slots(model: Model) -> KeyValueSlots:
    return KeyValueSlots(model.geometry, 10_000, PrefixStore(model.geometry, 10_000))


def test_logits_of_rows_that_share_prefixes_are_those_of_separate_rows(model: Model) -> None:
    beginnings = {"first": model.encode(STORY), "second": model.encode(OTHER)}
    slots, rows = empty_slots(model), list[tuple[str, list[int]]]()
    for adapter, tokens in beginnings.items():
        names = stored(model, slots, adapter, tokens)
        for count, end in ((len(names), " closed"), (len(names), "\n> open drawer 3 and then"), (2, " is open")):
            prefix = slots._store.prefix(names[:count])
            slots.add(prefix)
            rows.append((adapter, [*tokens[: prefix.tokens], *model.encode(end)]))
    slots.add(slots._store.prefix([]))
    rows.append((BASE, model.encode("The capital of France is")))
    assert len({prefix.tokens for prefix in slots.prefixes}) == 4, "two long ones, a short one and none"
    for _ in range(2):
        columns = [tokens[slots.lengths[row] :] for row, (_, tokens) in enumerate(rows)]
        together = model.forward(columns, slots, [adapter for adapter, _ in rows]).logits_BV
        for (adapter, tokens), logits_V in zip(rows, together, strict=True):
            torch.testing.assert_close(logits_V, alone(model, adapter, tokens), rtol=0, atol=1e-4)
            tokens.append(int(logits_V.argmax()))


def stored(model: Model, slots: KeyValueSlots, adapter: str, tokens: Sequence[int]) -> list[bytes]:
    """Compute `tokens`, store their full blocks and return the names."""
    computed = empty_slots(model)
    computed.add(computed._store.prefix([]))
    model.forward([tokens], computed, [adapter])
    names = BlockNames(adapter).of(tokens)
    slots._store.remember(names, lambda *where: computed.read(0, *where), kept=slots.prefixes)
    return names


def alone(model: Model, adapter: str, tokens: Sequence[int]) -> torch.Tensor:
    slots = empty_slots(model)
    slots.add(slots._store.prefix([]))
    return model.forward([tokens], slots, [adapter]).logits_BV[0]


def test_running_requests_with_one_prefix_and_adapter_read_it_together(model: Model) -> None:
    client = Client(model)
    own = [f"{STORY}> go to cabinet {number}\n" for number in range(40, 44)]
    requests = [(text, adapter) for adapter in ("first", "second") for text in own]
    client.send(*requests[0], tokens=1).wait()
    pending = [client.send(*request, tokens=ENDLESS) for request in requests]
    assert all(request.goes_on() for request in pending)
    expected = len(model.encode(STORY)) // 16
    assert becomes_true(lambda: sharing(client) == [expected] * len(requests))
    first, second = ({prefix.blocks for prefix in prefixes_of(client, name)} for name in ("first", "second"))
    assert (len(first), len(second), first & second) == (1, 1, set())
    written = [request.let_end() for request in pending]
    for request, tokens in zip(requests, written, strict=True):
        assert Client(model).send(*request, tokens=len(tokens[:20])).wait() == tokens[:20]


def sharing(client: Client) -> list[int]:
    return [len(prefix.blocks) for prefix in client.engine._slots.prefixes]


def prefixes_of(client: Client, adapter: str) -> list[object]:
    pairs = zip(client.engine._rows, client.engine._slots.prefixes, strict=True)
    return [prefix for row, prefix in pairs if row.adapter == adapter]


@pytest.mark.parametrize("sampling", [SamplingParameters(temperature=0), SamplingParameters(temperature=1.0)])
def test_tokens_are_the_same_whoever_else_shares_the_prefix_and_leaves(
    model: Model, sampling: SamplingParameters
) -> None:
    texts = [STORY + end for end in ("> open", "> look", "\n", "> go to cabinet 2\n", "> go to cabinet 2\nit")]
    requests = [(text, adapter) for text in texts for adapter in ("first", BASE)]
    expected = [Client(model).send(*request, 12, sampling).wait() for request in requests]
    client = Client(model, max_batch=4)
    for _ in range(2):
        long = client.send(STORY + "and then", "first", ENDLESS)
        pending = [client.send(*request, 12, sampling) for request in requests]
        assert [request.wait() for request in pending] == expected
        long.generation.cancelled = True
        assert client.becomes_idle()


def test_equal_prompts_hold_one_copy_of_their_tokens(model: Model) -> None:
    client = Client(model)
    pending = [client.send(STORY, tokens=ENDLESS, sampling=SamplingParameters(), seed=seed) for seed in range(4)]
    assert all(request.goes_on() for request in pending)
    assert len(set(sharing(client))) == 1
    assert sharing(client)[0] == len(model.encode(STORY)) // 16
    end(client, pending)


def test_a_batch_after_another_takes_no_new_memory(model: Model) -> None:
    client = Client(model)
    places = []
    for batch in range(3):
        texts = [f"{STORY}> go to cabinet {10 * batch + number}\n" for number in range(6)]
        pending = [client.send(text) for text in texts]
        assert all(len(request.wait()) == 12 for request in pending)
        assert client.becomes_idle()
        slots = client.engine._slots
        places.append([layer.data_ptr() for layer in (*slots._layers, *slots._store.layers)])
    assert places[1] == places[2]


def end(client: Client, pending: Sequence[Pending]) -> None:
    for request in pending:
        request.generation.cancelled = True
    assert client.becomes_idle()

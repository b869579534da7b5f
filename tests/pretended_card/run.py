"""`python -m tests.pretended_card.run train ARGUMENT...`, `... resume CONFIG COMMAND...` or `... engine BASE ADAPTER`,
on the pretended card.

A process of its own: the device guard must be there before torch is.
"""

from tests.pretended_card import models  # It must come before torch.

import json
import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

from serve.engine.engine import Engine
from serve.engine.generation import DecodedText, TextGeneration
from serve.engine.model import BASE, Model
from serve.engine.sampling import Choices, SamplingParameters
from tests.pretended_card.device import PretendedCard, computed

TOKENS = 6


def write(engine: Engine, model: Model, texts: list[tuple[str, str]], **settings: Any) -> list[list[int]]:
    """Return the tokens of answers to prompts by the base or an adapter, requested at once."""
    delivered: queue.Queue[str] = queue.Queue()
    requests = [
        TextGeneration(
            prompt=model.encode(text),
            adapter=adapter,
            limit=TOKENS,
            sampling=SamplingParameters(**settings.get("sampling", {"temperature": 0.0})),
            stop_tokens=frozenset({0}) if "choices" in settings else frozenset(),
            transcript=DecodedText(model.decode, ()),
            deliver=lambda output: delivered.put(output.failure),
            generator=torch.Generator().manual_seed(number),
            choices=Choices([[*model.encode(choice), 0] for choice in settings["choices"]])
            if "choices" in settings
            else None,
            in_tokens="choices" not in settings,
        )
        for number, (text, adapter) in enumerate(texts)
    ]
    for request in requests:
        engine.submit(request)
    for _ in requests:
        if failure := delivered.get(timeout=120):
            raise RuntimeError(failure)
    return [request.tokens for request in requests]


def serve(base: Path, adapter: Path) -> None:
    """Print whether answers of the engine are the same in a batch, alone and repeated, in four precisions."""
    run_loop = Engine._run

    def run_on_card(engine: Engine) -> None:
        with PretendedCard():
            run_loop(engine)

    Engine._run = run_on_card  # type: ignore[method-assign]
    for quantization in ("none", "nf4"):
        for dtype in ("float32", "bfloat16"):
            with PretendedCard():
                model = Model(base, {"first": adapter}, dtype, quantization=quantization)
                engine = Engine(model, 8)
                texts = [
                    (f"{number} words and more words. " * (1 + number % 3), (BASE, "first")[number % 2])
                    for number in range(6)
                ]
                together = write(engine, model, texts)
                facts = {
                    "device": model.geometry.device.type,
                    "precision": f"{quantization} {dtype}",
                    "repeated": together == write(engine, model, texts),
                    "alone": sum(together[row] == write(engine, model, [text])[0] for row, text in enumerate(texts)),
                    "tokens": sum(map(len, together)),
                    "sampled": len(
                        write(engine, model, texts, sampling={"top_p": 0.9, "top_k": 40, "presence_penalty": 0.5})
                    ),
                    "chosen": len(write(engine, model, texts[:3], choices=(" yes", " no", " no way"))),
                }
            print(json.dumps(facts), flush=True)


def stop_and_resume(config: str, commands: list[str]) -> None:
    """Train stages, each stopped by SIGTERM once there is a checkpoint, and begun again."""
    from train.__main__ import main
    from train.loop import Stopped

    for command in commands:
        stage, *overrides = command.split()
        threading.Thread(target=stop_at_a_checkpoint, args=(stage,), daemon=True).start()
        with PretendedCard():
            with suppress(Stopped):
                main([stage, config, *overrides])
            main([stage, config, *overrides])


def stop_at_a_checkpoint(stage: str) -> None:
    while not list(Path("runs/tiny/checkpoints").glob(f"{stage}-*/*")):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    models.install()
    torch.set_num_threads(1)
    command, *arguments = sys.argv[1:]
    if command == "resume":
        stop_and_resume(arguments[0], arguments[1:])
    elif command == "train":
        from train.__main__ import main

        with PretendedCard():
            main(arguments)
        compilations = counters["stats"]["unique_graphs"]
        print(f"{computed.total()} operations on the card, {compilations} compilations")
    else:
        serve(*map(Path, arguments))

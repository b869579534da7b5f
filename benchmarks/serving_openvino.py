"""Measurements of openvino-genai on the embedded model's 4-bit weights, for benchmarks/serving.py.

Runs in an environment of its own. Reads from stdin the path of the GGUF file, and then one load per line as JSON:
`{"primer": text, "prompts": [texts], "new_tokens": int}`. Answers each load with one line of measurements on stdout.
The prompts of a load are generated together, in this process: there is no server, so no request is parsed.
"""

import json
import sys
import time
from typing import Any

import openvino_genai as genai


def main() -> None:
    scheduling = genai.SchedulerConfig()
    scheduling.enable_prefix_caching = True
    scheduling.cache_size = 2
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    pipeline = genai.ContinuousBatchingPipeline(json.loads(sys.stdin.readline()), scheduling, "CPU", hints)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(_measure(pipeline, json.loads(line))), flush=True)


def _measure(pipeline: Any, load: dict[str, Any]) -> dict[str, float]:
    config = genai.GenerationConfig()
    config.apply_chat_template = False
    config.max_new_tokens = 1
    pipeline.generate([load["primer"]], [config])
    config.max_new_tokens = load["new_tokens"]
    cpu, wall = time.process_time(), time.monotonic()
    results = pipeline.generate(load["prompts"], [config] * len(load["prompts"]))
    figures = {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.monotonic() - wall}
    tokenizer = pipeline.get_tokenizer()
    new = sum(tokenizer.encode(text).input_ids.shape[1] for result in results for text in result.m_generation_ids)
    prompt = sum(tokenizer.encode(text).input_ids.shape[1] for text in load["prompts"])
    return {**figures, "new_tokens": new, "prompt_tokens": prompt}


main()

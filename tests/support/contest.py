"""A run with two adapters whose advice an agent follows or suffers from, for contests that end as its tasks say."""

import json
from pathlib import Path

import yaml

from retroformer.models.embedded import base_model_folder
from tests.serve.running import make_adapter, save_sketch

AGENT = '''
"""An agent that fails its first attempt at a task. `helped` tasks then need advice, `harmed` ones suffer from it."""

from pathlib import Path

HERE = Path(__file__).parent


def attempt(task, advice=""):
    mark = HERE / f"{task['id']}.seen"
    if not mark.exists():
        mark.touch()
        return {"output": "nothing", "score": 0.0}
    with (HERE / "retries").open("a") as retries:
        retries.write(task["id"] + "\\n")
    if task["split"] == "even":
        return {"output": "something", "score": 0.5}
    return {"output": "something", "score": float(bool(advice) == (task["split"] == "helped"))}
'''
TASKS = 20


def contest_run(folder: Path) -> Path:
    """Write an agent, its tasks, a base model, the adapters `sft` and `dpo` and a config, and return its path."""
    (folder / "doors.py").write_text(AGENT)
    lines = [
        json.dumps({"id": f"{split}-{number}", "input": f"Open the door {number}.", "split": split})
        for split in ("helped", "harmed", "even")
        for number in range(TASKS)
    ]
    (folder / "tasks.jsonl").write_text("\n".join(lines))
    base = save_sketch(base_model_folder("embedded"), folder / "base")
    for seed, stage in enumerate(("sft", "dpo")):
        make_adapter(base, folder / "runs" / "doors" / stage, seed)
    config = {
        "run": "doors",
        "environment": {
            "name": "agent",
            "data": "tasks.jsonl",
            "split": "helped",
            "agent": {"python": "doors:attempt"},
        },
        "loop": {"trials": 2, "concurrency": 4},
        "reflector": {"endpoint": {"model": "base"}, "max_new_tokens": 4},
        "train": {"base_model": str(base), "quantization": "none"},
        "serve": {"port": 0},
    }
    path = folder / "doors.yaml"
    path.write_text(yaml.safe_dump(config))
    return path

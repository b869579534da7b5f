"""Accuracy of reward models on the pairs of another training run, beside rules that need no training.

    python benchmarks/reward_model.py CONFIG --trained FOLDER [FOLDER ...] --learned-from RUN --pairs-of RUN [RUN ...]

The pairs are those of the named runs' collected reflections on ALFWorld games. Left out are games of --learned-from,
and games that a reward model or the adapter it started from was trained on. `longer` prefers the longer text in tokens.
`places` prefers the text that repeats more sightings and, after that, the one with the higher chance that a place it
names has what is missing, by the table counted in the attempts of --learned-from. Ties count as half. The 95% bootstrap
intervals are over clusters of games with one goal in one room.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from eval.measure.statistics import bootstrap_seeds
from retroformer.arm_names import COLLECT
from retroformer.environments import alfworld
from retroformer.environments.alfworld.advice.failure import FailureView, view_of
from retroformer.environments.alfworld.advice.places import PlaceTable
from retroformer.environments.alfworld.advice.reader import read_advice
from retroformer.environments.alfworld.text.compact import type_of
from retroformer.experiment.config import Experiment
from retroformer.experiment.file import load
from retroformer.experiment.storage import open_store
from retroformer.history import lessons_before
from retroformer.preference_pairs import preferences
from retroformer.rating import Rating, ratings
from retroformer.records import Key, Task, task_of_story
from retroformer.stage_metrics import recorded_tasks
from train.base import load_tokenizer
from train.data.samples import prompt_ids, response_ids
from train.group_trainer import trunk_of
from train.reward import Ranking, scorer
from train.shared_prompt.group import Group
from train.shared_prompt.packed import pack
from train.shared_prompt.reading import hidden_states


class Pair(NamedTuple):
    """Two reflections on one failure."""

    task: Task
    view: FailureView
    better: Rating
    worse: Rating


def main() -> None:
    """Print a table of accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--trained", type=Path, nargs="+", required=True, help="folders of reward models")
    parser.add_argument("--learned-from", required=True, help="run whose experience they were trained on")
    parser.add_argument("--pairs-of", nargs="+", required=True, help="runs whose pairs they order")
    parser.add_argument("overrides", nargs="*", metavar="key=value", default=[])
    args = parser.parse_intermixed_args()
    learned_from = load(args.config, [*args.overrides, f"run={args.learned_from}"])
    with closing(open_store(learned_from)) as store:
        attempts = dict(store.stream_trajectories(COLLECT))
    seen = {key.task_id for key in attempts}.union(*map(_read_by, args.trained))
    runs = [load(args.config, [*args.overrides, f"run={run}"]) for run in args.pairs_of]
    pairs = [pair for run in runs for pair in _pairs(run) if pair.task.id not in seen]
    cluster_of = alfworld.extras.cluster_of
    assert cluster_of is not None
    games, clusters = {pair.task.id for pair in pairs}, np.array([cluster_of(pair.task) for pair in pairs])
    print(f"{len(pairs)} pairs of {len(games)} games in {len(set(clusters))} clusters\n")
    print("| preferred text | pairs in order | 95% |\n|---|---|---|")
    tokenizer: Any = load_tokenizer(learned_from.train)
    scorers: dict[str, Callable[[Pair, str], float]] = {
        "longer": lambda pair, text: len(response_ids(tokenizer, text)),
        "places": _usefulness_by(PlaceTable(attempts.values())),
    }
    for name, score in scorers.items():
        _show(name, [score(pair, pair.better.text) - score(pair, pair.worse.text) for pair in pairs], clusters)
    for folder in args.trained:
        _show(str(folder), _margins(learned_from, tokenizer, folder, pairs), clusters)


def _read_by(folder: Path) -> set[str]:
    """Return the games that a reward model and the adapters before it were trained on."""
    if (recorded := recorded_tasks(folder)) is None:
        raise SystemExit(f"{folder} records no training tasks, so no pair is known to be new to it.")
    return {task_of_story(task) for training in recorded for task in training.tasks}


def _pairs(run: Experiment) -> Iterator[Pair]:
    with closing(open_store(run)) as store:
        attempts = dict(store.stream_trajectories(COLLECT))
        advice = {stored.key: stored for stored in store.stream_reflections(COLLECT)}
        for better, worse in preferences(ratings(store, COLLECT, records=True)):
            task_id, trial, candidate = better.trajectory
            failed = Key(arm=COLLECT, task_id=task_id, trial=trial - 1, candidate=candidate)
            view = view_of(attempts[failed], lessons_before(failed, attempts, advice))
            yield Pair(attempts[failed].task, view, better, worse)


def _usefulness_by(table: PlaceTable) -> Callable[[Pair, str], float]:
    """Return a function that rates a text about the failure of a pair by a table of places."""

    def usefulness(pair: Pair, text: str) -> float:
        """Return how many sightings the text repeats, plus the chance that a named place has a missing thing."""
        view = pair.view
        read = read_advice([text], view.order, view.goal)
        named = [type_of(place) for place in read.first if place in view.unsearched]
        chances = [max((float(table.rate(kind, place)) for kind in view.missing), default=0.0) for place in named]
        repeated = sum(place in read.sightings.get(type_of(thing), ()) for thing, place in view.needed)
        return repeated + 1 - math.prod(1 - chance for chance in chances)

    return usefulness


@torch.no_grad()
def _margins(run: Experiment, tokenizer: Any, folder: Path, pairs: Sequence[Pair]) -> list[float]:
    # Loaded as the start of another training, which gives score head and adapter in fp32, as they were trained.
    model = scorer(run.train, folder).eval()
    ranking = Ranking(run.train.reward)
    margins = []
    for pair in pairs:
        texts = [response_ids(tokenizer, each.text, each.is_cut) for each in (pair.better, pair.worse)]
        packed = pack([Group(prompt_ids(tokenizer, pair.better.prompt), texts)])
        better, worse = ranking.values(model, hidden_states(trunk_of(model), packed), packed).tolist()
        margins.append(better - worse)
    return margins


def _show(name: str, margins: Sequence[float], clusters: NDArray[np.str_]) -> None:
    """Print the share of pairs in order, with its interval."""
    in_order = np.array([[0.5 if margin == 0 else float(margin > 0) for margin in margins]])
    share = bootstrap_seeds(in_order, seed=0, clusters_T=clusters)
    print(f"| {name} | {share.mean:.3f} | [{share.low:.3f}, {share.high:.3f}] |", flush=True)


if __name__ == "__main__":
    main()

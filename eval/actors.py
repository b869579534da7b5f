"""Many models as the actor of one page: every arm is played with each, and one table shows them all."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from eval.outcome import ArmOutcome
from eval.page import to_html
from eval.statistics import bootstrap
from eval.table import table
from retroformer import durable
from retroformer.config import Experiment
from retroformer.redaction import redacted


def with_actor(experiment: Experiment, name: str) -> Experiment:
    """The page with this one of its actors; its arms are called ACTOR/ARM, so that their facts are told apart."""
    page = experiment.eval
    arms = {
        f"{name}/{arm}": one.model_copy(update={"of": f"{name}/{one.of}"} if one.of else {})
        for arm, one in page.arms.items()
    }
    examples = (f"{name}/{page.examples[0]}", f"{name}/{page.examples[1]}") if page.examples else None
    named = {"arms": arms, "reference": f"{name}/{page.reference}", "examples": examples}
    actor = experiment.actor.model_copy(update={"endpoint": page.actors[name]})
    return experiment.model_copy(update={"actor": actor, "eval": page.model_copy(update=named)})


def write_table(experiment: Experiment, played: Mapping[str, Sequence[ArmOutcome]]) -> Path:
    """report.md and report.html with the actors one below the other; return the path of the page."""
    trials = range(experiment.loop.trials)
    rows = [
        [
            actor,
            arm.name.removeprefix(f"{actor}/"),
            *(str(bootstrap(solved_T, experiment.seed)) for solved_T in arm.solved_NT),
            f"{arm.usage.prompt_tokens:,}",
            f"{arm.usage.completion_tokens:,}",
            f"[report]({actor}/report.md)",
        ]
        for actor, arms in played.items()
        for arm in arms
    ]
    header = ["actor", "arm", *(f"by trial {trial}" for trial in trials), "tokens in", "tokens out", ""]
    tasks = min(arm.solved_NT.shape[1] for arms in played.values() for arm in arms)
    text = (
        f"# {experiment.run}: {len(played)} actors\n\n"
        f"Share of {experiment.environment.name} tasks solved (at least {tasks} of each actor), with 95 % intervals "
        f"over tasks.\n\n{table(header, rows)}\n"
    )
    folder = experiment.folder / "eval"
    folder.mkdir(parents=True, exist_ok=True)
    text = redacted(text)
    durable.write_text(folder / "report.md", text)
    durable.write_text(folder / "report.html", to_html(text, f"Retroformer: {experiment.run}"))
    return folder / "report.html"

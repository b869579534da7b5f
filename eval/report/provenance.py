"""Report sections on causes of invalid attempts and the provenance of the numbers."""

import yaml

from retroformer.experiment.config import Experiment
from retroformer.markdown import code, fenced, plain
from retroformer.provenance import code_version, package_versions

from .input import ReportInput

_CAUSES = 10
"""Most causes of invalid attempts that are shown."""


def invalid_causes(report_input: ReportInput) -> str:
    """Render the causes of invalid attempts, most common first; empty if there are none."""
    seeds = [seed for arm in report_input.results for seed in arm.seeds]
    arms = dict.fromkeys(name for seed in seeds for name in (seed.first_trial, seed.stored))
    causes = report_input.store.cause_counts(list(arms), _CAUSES)
    return "\n".join(f"- {count} x {plain(cause)}" for cause, count in causes)


def origin(experiment: Experiment) -> str:
    """Render the commit, the package versions and the resolved config."""
    version = code_version()
    commit = code(version.commit) + (" with uncommitted changes" if version.dirty else "")
    versions = ", ".join(f"{name} {number}" for name, number in package_versions().items())
    config = yaml.safe_dump(experiment.as_file(), sort_keys=False)
    return (
        f"Commit {commit}. Versions: {versions}. Every number can be traced to the attempts stored in "
        f"{code(str(experiment.store_url))}.\n\n{fenced(config, 'yaml', 'The config of the evaluation')}"
    )

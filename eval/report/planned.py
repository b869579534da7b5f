"""Report section on the comparisons that the config planned."""

from retroformer.arm_names import first_trial
from retroformer.experiment.sections.eval import PlannedComparison
from retroformer.markdown import plain, table
from retroformer.store import Store

from ..measure.rates import Rates, paired_difference
from ..measure.statistics import MeanInterval


def planned(comparisons: tuple[PlannedComparison, ...], rates: Rates, store: Store, name: str) -> str:
    """Render the result of each planned comparison over all tasks, unfinished ones counted as failures."""
    rows = []
    for comparison in comparisons:
        difference, count = _difference(comparison, rates)
        trial = "the last trial" if comparison.trial is None else f"trial {comparison.trial}"
        tasks = "tasks" if comparison.of == "tasks" else "tasks that failed at trial 0"
        met = {True: "met", False: "missed"}[_met(comparison, difference)]
        arms = [plain(comparison.first), plain(comparison.second)]
        rows.append([*arms, f"{count} {tasks}, {trial}", _wanted(comparison), str(difference), met])
    header = ["first arm", "second arm", "solved of, by", "planned", "first - second", "result"]
    shown = table(header, rows, "Comparisons that were fixed before any held-out task was played.")
    sha256 = (store.conditions(first_trial(name)) or {}).get("plan_sha256", "")
    return f"The plan has the sha256 `{sha256}`, which is stored with every attempt at trial 0.\n\n{shown}"


def _difference(comparison: PlannedComparison, rates: Rates) -> tuple[MeanInterval, int]:
    arms = {arm.name: arm for arm in rates.all_tasks}
    trial = -1 if comparison.trial is None else comparison.trial
    difference = paired_difference(arms[comparison.first], arms[comparison.second], trial)
    if comparison.of == "failures":
        difference = difference[..., rates.all_tasks[0].solved_NT[0] == 0]
    if not difference.size:
        return MeanInterval(0.0, 0.0, 0.0), 0
    return rates.intervals.of(difference), difference.shape[-1]


def _wanted(comparison: PlannedComparison) -> str:
    mean = None if comparison.mean is None else f"mean at least {comparison.mean:g}"
    low = None if comparison.low is None else f"lower bound above {comparison.low:g}"
    return ", ".join(filter(None, (mean, low))) or "none"


def _met(comparison: PlannedComparison, difference: MeanInterval) -> bool:
    mean_met = comparison.mean is None or difference.mean >= comparison.mean
    return mean_met and (comparison.low is None or difference.low > comparison.low)

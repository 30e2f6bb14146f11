"""A plan as a tree that people can read: what `treadle metrics --explain POLICY --engine ENGINE` prints.

Below the tree are the policy's own metrics by Haren's four kinds of features (section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from treadle.observe.catalogue import METRICS
from treadle.observe.features import KINDS, features, words
from treadle.observe.metric import Metric
from treadle.observe.plan import Step, make_plan

_NOTES = {
    "static": " (and priorities, goals and the graph, which every policy knows)",
    "dynamic": "",
    "dependent": "",
    "execution-intrinsic": "",
}


def explain(
    names: Iterable[str],
    offers: Iterable[str],
    engine_name: str,
    *,
    policy: str = "",
    metrics: Mapping[str, Metric] = METRICS,
) -> str:
    """Return text that shows how each metric is obtained; raise the provider's error if one can't be obtained."""
    wanted = list(dict.fromkeys(names))
    plan = make_plan(wanted, frozenset(offers), metrics=metrics, engine=engine_name, policy=policy)
    steps = {step.name: step for step in plan}
    shown: set[str] = set()
    lines = [line for name in wanted for line in _tree(name, steps, engine_name, shown)]
    label_width = max((len(label) for label, _, _ in lines), default=0)
    unit_width = max((len(unit) for _, unit, _ in lines), default=0)
    rows = [f"{label:{label_width}}  {unit:{unit_width}}  {origin}" for label, unit, origin in lines]
    taken = [step.name for step in plan if step.way is None]
    return "\n".join([*rows, f"sampled each round: {', '.join(taken) or 'nothing'}", *_kinds(wanted, metrics)])


def _kinds(wanted: Iterable[str], metrics: Mapping[str, Metric]) -> Iterator[str]:
    """Yield a line for each of Haren's kinds of features, with the metrics of that kind."""
    kinds = {name: words(kind) for name, kind in features(wanted, metrics).items()}
    for word in KINDS:
        yield f"{word + ':':21}{', '.join(name for name, of in kinds.items() if word in of) or '-'}{_NOTES[word]}"


def _tree(
    name: str, steps: Mapping[str, Step], engine: str, shown: set[str], lead: str = "", branch: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield (label, unit, origin) of a metric and of all that it needs; a metric shown before is not expanded again."""
    step = steps[name]
    again = name in shown and bool(step.needs)
    shown.add(name)
    yield f"{lead}{branch}{name}", step.metric.unit, "see above" if again else _origin(step, engine)
    if again:
        return
    inner = lead + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
    for need in step.needs:
        yield from _tree(need, steps, engine, shown, inner, "└─ " if need == step.needs[-1] else "├─ ")


def _origin(step: Step, engine: str) -> str:
    origin = f"derived from {', '.join(step.needs)}" if step.way else f"taken from {engine}"
    return f"{origin}, smoothed" if step.metric.smooth else origin

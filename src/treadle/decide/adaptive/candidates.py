"""Candidates and settings of an adaptive policy as text: `chain+(weighted:qs=0.7,hr=0.3)`, and `amos:paper`.

A candidate's label is its name with the options that were given. So measurements, also those in a file, belong to a
candidate only if it has the same options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from treadle.decide.policies.shared.spec import bare, parse, split
from treadle.decide.policy import Policy
from treadle.errors import ConfigError

NAMES = ("adaptive", "amos")
PAPER = "amos:paper"
PAPERS: Mapping[str, str] = {
    "candidates": "rr+fifo+mtiq+chain",
    "objective": "min latency+max throughput+min total_queue",
    "learner": "roulette",
    "settle": "0",
    "inherit": "false",
    "warm_up": "1",
    "discount": "1",
}
"""The paper's setting: section 2.1's algorithms, section 4.4's objectives of equal weight, and section 3.5's learner.

The paper gives no number for the delay threshold and a range for the decay factor, so both have Treadle's defaults.
"""


def labelled(
    text: str, create: Callable[[str], Policy], known: Mapping[str, Policy] | None = None
) -> dict[str, Policy]:
    """Return by label the candidates that are joined by `+` in a text; those in `known` are not created again."""
    there = known or {}
    found: dict[str, Policy] = {}
    for part in split(text, "+"):
        label, policy = _labelled(bare(part), create, there)
        if label in found:
            raise ConfigError(f"'{label}' is given twice", where="candidates", remedy="keep one of them")
        found[label] = policy
    return found


def joined(labels: Iterable[str]) -> str:
    """Return labels as one text that `labelled` reads."""
    return "+".join(f"({label})" if ":" in label else label for label in labels)


def spelt_out(spec: str, usual: Mapping[str, str]) -> str:
    """Return the spec of a policy; for an adaptive one, with the `usual` options that it does not set itself."""
    name, given = parse(expanded(spec))
    return _spelt(name, {**usual, **given}) if name in NAMES else spec


def respelt(spec: str, **options: str) -> str:
    """Return the spec of an adaptive policy with other values of these options."""
    name, given = parse(expanded(spec))
    return _spelt(name, {**given, **options})


def expanded(spec: str) -> str:
    """Return a spec with `paper` replaced by the options that it stands for; any other spec unchanged."""
    name, _, rest = spec.partition(":")
    word, comma, more = rest.partition(",")
    if name.strip().lower() not in NAMES or word.strip().lower() != "paper":
        return spec
    given = parse(f"{name}:{more}")[1] if comma else {}
    return _spelt(name.strip().lower(), {**PAPERS, **given})


def _labelled(spec: str, create: Callable[[str], Policy], known: Mapping[str, Policy]) -> tuple[str, Policy]:
    if spec in known:
        return spec, known[spec]
    policy = create(spec)
    given = parse(expanded(spec))[1]
    label = _spelt(policy.name, given)
    return label, known.get(label, policy)


def _spelt(name: str, options: Mapping[str, str]) -> str:
    return f"{name}:{','.join(f'{key}={value}' for key, value in options.items())}" if options else name

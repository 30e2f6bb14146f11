"""What `treadle demo --simulator` claims: virtual time and fixed seeds, so a claim holds everywhere or nowhere.

The changing load takes a minute alone, the bursts half of one: they, and more than one seed, are for `make soak`, which
sets `TREADLE_SOAK`.
"""

import os
from pathlib import Path

import pytest

from treadle.bench.simulator import compare, orderings
from treadle.engines.simulator import scenario

SOAK = "TREADLE_SOAK" in os.environ
NAMES = ["haren-single-class", *(["haren-multi-class-bursts", "changing-load"] if SOAK else [])]


@pytest.fixture(scope="module")
def parts() -> dict[str, orderings.Part]:
    return {part.name: part for part in orderings.run(names=NAMES, most_seeds=3 if SOAK else 1)}


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_of_the_demo_holds(parts: dict[str, orderings.Part], name: str) -> None:
    assert parts[name].claims
    assert [claim.text for claim in parts[name].claims if not claim.holds] == []


def test_the_demo_draws_its_pictures(parts: dict[str, orderings.Part], tmp_path: Path) -> None:
    for part in parts.values():
        path = tmp_path / f"{part.name}.png"
        part.draw(path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_claim_that_does_not_hold_is_said_not_to(parts: dict[str, orderings.Part]) -> None:
    """The claims can fail: the same figures under swapped names."""
    outcomes = {outcome.label: outcome for outcome in parts["haren-single-class"].outcomes}
    swapped = [compare.relabelled(outcomes[a], b) for a, b in (("fcfs", "hr"), ("hr", "chain"), ("chain", "fcfs"))]
    swapped += [compare.relabelled(outcomes["os"], "random@nice"), compare.relabelled(outcomes["random@nice"], "os")]
    assert [claim.holds for claim in orderings.papers_orderings([swapped])] == [False] * 4


def test_progress_is_told_from_nothing_to_everything() -> None:
    small = scenario.parse(
        'title = "small"\nseconds = 1\n[[chains]]\nname = "c"\ncount = 2\nlength = 2\n'
        "base_cost = 1e-4\nsource = { rate = 100 }",
        where="small.toml",
    )
    told: list[tuple[str, float]] = []
    compare.compare(small, ["fifo", "os"], progress=lambda what, part: told.append((what, part)))
    assert told[0][0] == "fifo"
    assert told[-1] == ("os", 1.0)
    assert [part for _, part in told] == sorted(part for _, part in told)

"""The knobs that write into tables: the share of rows that streams keep, and the workers on which queries run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from treadle.enforce import Enforcer
from treadle.enforce.place import PlaceKnob
from treadle.enforce.shed import Choice, Count, ShedKnob, by_key, by_utility
from treadle.errors import ConfigError


class Shares:
    """A table that keeps all rows of streams that it does not name."""

    def __init__(self) -> None:
        self.shares: dict[str, float] = {}

    def get(self, stream: str) -> float:
        return self.shares.get(stream, 1.0)

    def set(self, stream: str, keep: float) -> None:
        self.shares[stream] = keep

    def counts(self) -> Mapping[str, Count]:
        return {}


class Workers:
    """A table in which a query that it does not name may run anywhere."""

    def __init__(self) -> None:
        self.workers: dict[str, str] = {}

    def get(self, query: str) -> str:
        return self.workers.get(query, "")

    def set(self, query: str, worker: str) -> None:
        self.workers[query] = worker


def test_the_share_of_rows_is_a_knob_for_groups_that_keeps_all_by_default() -> None:
    table = Shares()
    knob = ShedKnob(table)
    assert (knob.name, knob.per, knob.read("clicks")) == ("keep", "group", 1.0)
    for share in (0, 0.25, 1):
        knob.write("clicks", share)
        assert table.shares == {"clicks": float(share)}
        assert isinstance(table.shares["clicks"], float)
        assert (knob.read("clicks"), knob.read("views")) == (float(share), 1.0)


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), "0.5"])
def test_a_share_is_from_nothing_to_all(value: float | str) -> None:
    table = Shares()
    with pytest.raises(ConfigError) as caught:
        ShedKnob(table).write("clicks", value)
    assert str(caught.value) == f"knob 'keep': can't be {value!r} (use a number from 0 to 1)"
    assert table.shares == {}


def test_the_place_is_a_knob_for_groups_with_the_ids_of_workers() -> None:
    table = Workers()
    knob = PlaceKnob(table)
    assert (knob.name, knob.per, knob.read("sales")) == ("place", "group", "")
    knob.write("sales", "w1,w2")
    assert (table.workers, knob.read("sales")) == ({"sales": "w1,w2"}, "w1,w2")
    with pytest.raises(ConfigError) as caught:
        knob.write("sales", 3.0)
    assert str(caught.value) == "knob 'place': can't be 3.0 (use ids of workers, separated by commas)"
    assert table.workers == {"sales": "w1,w2"}


def test_a_restore_puts_a_query_back_to_any_worker() -> None:
    table = Workers()
    enforcer = Enforcer(PlaceKnob(table))
    enforcer.apply(enforcer.diff(("sales",), np.array(["w1"], dtype=np.object_)))
    assert table.workers == {"sales": "w1"}
    enforcer.restore()
    assert table.workers == {"sales": ""}


def test_the_share_that_was_kept_is_that_of_the_rows_that_were_checked() -> None:
    assert Count(200, 50).part == 0.25
    assert Count(0, 0).part == 1.0
    assert Count(100, 101).part == 1.0
    assert Count(300, 80).since(Count(200, 50)) == Count(100, 30)


def test_rows_are_chosen_by_a_utility_or_by_keys_and_by_neither_if_nothing_is_said() -> None:
    assert by_utility("amount") == Choice(utility="amount") != Choice()
    assert by_key("card", "shop") == Choice(key=("card", "shop"))
    assert Choice() == Choice(None, ())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: by_utility(" "),
            "by_utility(' ') names no column (name a column, as by_utility('amount'); to drop any rows, leave",
        ),
        (
            lambda: by_utility(None),  # type: ignore[arg-type]
            "by_utility(None) names no column (name a column",
        ),
        (
            lambda: by_key(),
            "by_key() names no column (name the columns, as by_key('card'); to drop any rows, leave shed out)",
        ),
        (lambda: by_key("a", " "), "by_key('a', ' ') has an empty name (name the columns"),
        (
            lambda: by_key(3),  # type: ignore[arg-type]
            "by_key(3,) has an empty name (name the columns",
        ),
        (lambda: Choice("amount", ("card",)), "can't use both a utility and a key (give one of them)"),
    ],
)
def test_a_choice_that_can_not_be_is_refused_with_the_remedy(make: Callable[[], Choice], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(f"shed: {says}")

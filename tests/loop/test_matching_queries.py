"""Which queries of which engine a binding is for, and which bindings are refused."""

from __future__ import annotations

import math

import pytest

from treadle.decide.policies import QueueSize
from treadle.decide.transform import SCALES, nice
from treadle.errors import ConfigError
from treadle.loop import Binding


def of(*queries: str) -> Binding:
    return Binding(QueueSize(), "nice", 1.0, queries=queries)


@pytest.mark.parametrize(
    ("pattern", "engine", "query", "concerns", "may_concern"),
    [
        ("*", "spark", "sales", True, True),
        ("sales", "spark", "sales", True, True),
        ("sales", "spark", "presales", False, True),
        ("sale?", "spark", "sales", True, True),
        ("[rs]ales", "flink", "sales", True, True),
        ("Sales", "spark", "sales", False, True),
        ("spark/*", "spark", "sales", True, True),
        ("spark/*", "flink", "sales", False, False),
        ("sp*/sales", "spark", "sales", True, True),
        ("sp*/sales", "spark", "other", False, True),
        ("spark/a/b", "spark", "a/b", True, True),
        ("flink/spark", "spark", "flink", False, False),
    ],
)
def test_a_pattern_is_for_names_of_queries_with_or_without_their_engine(
    pattern: str, engine: str, query: str, concerns: bool, may_concern: bool
) -> None:
    assert of(pattern).concerns(engine, query) is concerns
    assert of(pattern).may_concern(engine) is may_concern
    assert of("nobody/x", pattern).concerns(engine, query) is concerns
    assert of(pattern, "nobody/x").may_concern(engine) is may_concern


def test_the_scale_is_that_of_the_knob_unless_the_binding_has_its_own() -> None:
    assert of("*").to_scale is SCALES["nice"]
    own = nice(0, 5)
    assert Binding(QueueSize(), "volume", 1.0, scale=own).to_scale is own


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"period": 0.0}, "its period can't be 0.0 (use seconds above 0)"),
        ({"period": math.inf}, "its period can't be inf (use seconds above 0)"),
        (
            {"knob": "volume"},
            "knob 'volume' has no scale of its own (give the binding a scale, or use one of unit, nice",
        ),
        ({"knob": "shares", "grouping": "colour"}, "unknown grouping 'colour' (use one of "),
        ({"queries": ()}, "names no queries (use '*' for all)"),
    ],
)
def test_a_binding_that_can_not_be_is_refused_with_its_policy_and_the_remedy(
    options: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Binding(**{"policy": QueueSize(), "knob": "nice", "period": 1.0, **options})  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"policy 'queue-size': {says}")
    assert str(caught.value).endswith(")")

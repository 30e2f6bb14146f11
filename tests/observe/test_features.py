from __future__ import annotations

from treadle.observe import METRICS, Kind, features, intrinsic


def test_only_metrics_measured_while_running_ask_for_neglected_operators() -> None:
    assert intrinsic(["queue", "head_age", "rate"]) == frozenset()
    assert intrinsic(["queue", "cost", "global_rate"]) == {"cost", "global_rate"}


def test_a_metric_that_only_its_engine_knows_may_change_in_any_way() -> None:
    kind = features(["glamour"])["glamour"]
    assert all(flag in kind for flag in (Kind.DYNAMIC, Kind.ON_UPSTREAM, Kind.ON_DOWNSTREAM, Kind.INTRINSIC))


def test_the_features_of_haren_are_of_the_kinds_of_its_table_1() -> None:
    kinds = features(["cost", "selectivity", "head_age"], METRICS)
    for name in ("cost", "selectivity"):
        assert Kind.INTRINSIC in kinds[name]
        assert Kind.ON_UPSTREAM not in kinds[name]
    assert Kind.ON_UPSTREAM in kinds["head_age"]
    assert Kind.INTRINSIC not in kinds["head_age"]

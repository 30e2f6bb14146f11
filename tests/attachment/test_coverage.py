"""A query is met when it is seen at work; a pattern that fits none of them is a mistake."""

from __future__ import annotations

from dataclasses import replace

from treadle.attachment.coverage import QueryCoverage
from treadle.model import Instance, Operator, Query, ThreadRef, Topology


def topology(*at_work: str) -> Topology:
    """Queries `alerts` and `reports`, both planned, some at work."""
    names = ("alerts", "reports")
    queries = [Query(name, (Operator("scan"),)) for name in names]
    driver = Query("driver", tuple(Operator(f"plan {name}") for name in names))
    instances = [
        Instance(name, ("scan",), 0, "", (ThreadRef(number + 1),) if name in at_work else ())
        for number, name in enumerate(names)
    ]
    instances += [Instance("driver", (operator.name,), 0, "", (ThreadRef(9),)) for operator in driver.operators]
    return Topology((*queries, driver), tuple(instances), 1)


def test_all_are_met_when_each_was_seen_at_work_once() -> None:
    met = QueryCoverage(["*"])
    met.look(topology("reports"))
    assert met.known == {"alerts", "reports"}
    assert not met.all
    met.look(topology("alerts"))
    assert met.all


def test_of_several_applications_queries_and_drivers_are_told_apart() -> None:
    met = QueryCoverage(["driver", "alerts"])
    parts = []
    for engine, at_work in (("one", ("alerts",)), ("two", ("alerts", "reports"))):
        found = topology(*at_work)
        parts.append(replace(found, instances=tuple(replace(each, engine=engine) for each in found.instances)))
    met.look(Topology.merge(parts))
    assert met.known == {"alerts", "reports"}
    assert met.unfit == set()
    assert met.all


def test_a_pattern_that_fits_no_query_stays_unfit() -> None:
    met = QueryCoverage(["alrts", "rep*", "*"])
    met.look(topology())
    assert met.unfit == {"alrts"}
    assert not met.all

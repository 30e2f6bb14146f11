"""The graph of Linear Road: one operator for each of the specification, in both modes.

`per_minute`: LAVs and counts also reach the operator that decides tolls, which passes their notifications on::

    lines -> dispatcher -+-> average_speed -> last_average_speed -> toll_notification_las -+
                         +-> count_vehicles -> toll_notification_cv ------------------------+-> toll_notification_pos
                         +------------------------------------------------------------------+

`constant_load`: the three toll operators know nothing of each other, and all selectivities are 1, as in the runs that
Lachesis' authors measured::

    lines -> dispatcher -+-> average_speed -> last_average_speed -> toll_notification_las -+
                         +-> count_vehicles -> toll_notification_cv ------------------------+-> notifications
                         +-> toll_notification_pos -----------------------------------------+

Their program ends a minute with every tuple, and some of its tables never match and grow without limit. Here the
average speed of a report is also the single speed of the report before, and a count has only its minute. But a LAV is
the mean of the latest speeds of its segment, at most 11, where the program has the last speed alone.
"""

from __future__ import annotations

from treadle.errors import ConfigError
from treadle.pipelines.api.pipeline import Pipeline
from treadle.workloads.linear_road import operators
from treadle.workloads.linear_road.rules import Mode
from treadle.workloads.text_lines import LINES, Source, add_lines


def pipeline(
    *,
    source: Source = "topic",
    prefix: str = "",
    name: str = "linear_road",
    mode: Mode = "per_minute",
) -> Pipeline:
    """The graph with a sink that drops all rows."""
    p = Pipeline(name)
    for read in add(p, source=source, prefix=prefix, mode=mode):
        p.write("sink", reads=read, format="noop")
    return p


def add(
    p: Pipeline,
    *,
    source: Source = "topic",
    prefix: str = "",
    mode: Mode = "per_minute",
) -> tuple[str, ...]:
    """Add input and operators to a pipeline, also beside other applications; returns the node that the sink reads.

    The topic's name begins with `prefix`.
    """
    if mode not in ("per_minute", "constant_load"):
        raise ConfigError(f"mode '{mode}' is unknown", where="linear_road", remedy="use per_minute or constant_load")
    add_lines(p, source, prefix)
    p.operator(name="dispatcher", inputs=LINES)(operators.dispatcher)
    return _per_minute(p) if mode == "per_minute" else _constant_load(p)


def _per_minute(p: Pipeline) -> tuple[str, ...]:
    p.operator(name="average_speed", inputs="dispatcher")(operators.average_speed)
    p.operator(name="last_average_speed", inputs="average_speed")(operators.last_average_speed)
    p.operator(name="toll_notification_las", inputs="last_average_speed")(operators.toll_notification_las)
    p.operator(name="count_vehicles", inputs="dispatcher")(operators.count_vehicles)
    p.operator(name="toll_notification_cv", inputs="count_vehicles")(operators.toll_notification_cv)
    tables = ("toll_notification_las", "toll_notification_cv")
    p.operator(name="toll_notification_pos", inputs=("dispatcher", *tables))(operators.toll_notification_pos)
    return ("toll_notification_pos",)


def _constant_load(p: Pipeline) -> tuple[str, ...]:
    p.operator(name="average_speed", inputs="dispatcher")(operators.previous_speed)
    p.operator(name="last_average_speed", inputs="average_speed")(operators.latest_values)
    p.operator(name="toll_notification_las", inputs="last_average_speed")(operators.toll_notification_las)
    p.operator(name="count_vehicles", inputs="dispatcher")(operators.progress)
    p.operator(name="toll_notification_cv", inputs="count_vehicles")(operators.toll_notification_cv)
    p.operator(name="toll_notification_pos", inputs="dispatcher")(operators.zero_toll)
    both = ("toll_notification_las", "toll_notification_cv", "toll_notification_pos")
    p.operator(name="notifications", inputs=both)(operators.notifications)
    return ("notifications",)

"""RIoTBench's ETL as a pipeline: ten operators with two sinks (Lachesis, section 6.2).

```
lines -> senml_parse -> range_filter -> bloom_filter -> interpolation -> join -> annotate -+-> table_insert
                                                                                           +-> csv_to_senml -> publish
```
"""

from __future__ import annotations

from treadle.pipelines.api.pipeline import Pipeline
from treadle.workloads.riot import etl_operators as operators
from treadle.workloads.text_lines import LINES, Source, add_lines


def pipeline(*, source: Source = "topic", prefix: str = "", name: str = "etl") -> Pipeline:
    """The graph, with a sink that discards its rows for each of the two outputs."""
    p = Pipeline(name)
    for output in add(p, source=source, prefix=prefix):
        p.write(f"{output}_out", reads=output, format="noop")
    return p


def add(p: Pipeline, *, source: Source = "topic", prefix: str = "") -> tuple[str, ...]:
    """Add the input and the operators to a pipeline; return the names of the nodes that sinks read.

    The topic's name begins with `prefix`.
    """
    add_lines(p, source, prefix)
    p.operator(inputs=LINES)(operators.senml_parse)
    p.operator(inputs="senml_parse")(operators.range_filter)
    p.operator(inputs="range_filter")(operators.bloom_filter)
    p.operator(inputs="bloom_filter")(operators.interpolation)
    p.operator(inputs="interpolation")(operators.join)
    p.operator(inputs="join", stateful=False)(operators.annotate)  # a join with a table keeps no state
    p.operator(inputs="annotate")(operators.table_insert)
    p.operator(inputs="annotate")(operators.csv_to_senml)
    p.operator(inputs="csv_to_senml")(operators.publish)
    return "table_insert", "publish"

"""RIoTBench's STATS as a pipeline, in the form that Lachesis runs (section 6.2): ten operators in three branches.

```
lines -> parse_project -> bloom_filter_check -+-> kalman_filter -> sliding_linear_regression -> publish_regression
                                              +-> second_order_moment -------------------------> publish_moment
                                              +-> distinct_approx_count -----------------------> publish_count
```

The original has three instances of one operator that publishes the results of all branches. Here each branch has an
instance of its own: with one for all, the layout `fused` would need three operators with state in Python in one query,
which Spark refuses.
"""

from __future__ import annotations

from treadle.pipelines.api.pipeline import Pipeline
from treadle.workloads.riot import stats_operators as operators
from treadle.workloads.text_lines import LINES, Source, add_lines


def pipeline(*, source: Source = "topic", prefix: str = "", name: str = "stats") -> Pipeline:
    """The graph, with a sink that discards its rows for each of the three outputs."""
    p = Pipeline(name)
    for output in add(p, source=source, prefix=prefix):
        p.write(f"{output}_out", reads=output, format="noop")
    return p


def add(p: Pipeline, *, source: Source = "topic", prefix: str = "") -> tuple[str, ...]:
    """Add the input and the operators to a pipeline; return the names of the nodes that sinks read.

    The topic's name begins with `prefix`.
    """
    add_lines(p, source, prefix)
    p.operator(inputs=LINES)(operators.parse_project)
    p.operator(inputs="parse_project")(operators.bloom_filter_check)
    p.operator(inputs="bloom_filter_check")(operators.kalman_filter)
    p.operator(inputs="kalman_filter")(operators.sliding_linear_regression)
    p.operator(inputs="bloom_filter_check")(operators.second_order_moment)
    p.operator(inputs="bloom_filter_check")(operators.distinct_approx_count)
    published = {
        "publish_regression": "sliding_linear_regression",
        "publish_moment": "second_order_moment",
        "publish_count": "distinct_approx_count",
    }
    for name, branch in published.items():
        p.operator(name=name, inputs=branch)(operators.publish)
    return tuple(published)

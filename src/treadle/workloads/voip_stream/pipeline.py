"""VoipStream as a pipeline: 15 operators, of which the source is a feed or a topic, and the sink a writer.

```
lines -> parser -> dispatcher -+-> ct24 -------+
                               +-> global_acd -+-> acd -----+
                               +-> ecr24 ------+            |
                               +-> ecr --+--> url ----------+-> score -> sink
                               +-> encr -+                  |
                               +-> pre_rcr -> rcr -> fofir -+
                                                     ^ ecr
```
Choices, where the paper's implementation leaves results to chance:

- **The global average reaches acd with each call.** global_acd emits a row for each call, with the average up to this
  call, and acd matches it with the caller's values of the same call. With a broadcast, the average that a call meets
  would depend on which operator is faster. This costs no more rows: global_acd emits one row per call there, too.
- **Matching is by call**: (calling, answer_ts) and the id of the record. Each row that is matched has the `created` of
  its call, so the output's is that of the last input, whichever input that is.
- **Unmatched calls time out by event time**, when all inputs have passed them by 60 s. The result is the same
  whatever the micro-batches are, and however far one input is behind the others.
- **One instance of each operator** keeps the state of all keys, as in the paper. So all rows stay in order.
"""

from __future__ import annotations

from treadle.pipelines.api.pipeline import Pipeline
from treadle.workloads.text_lines import Source, add_lines


def pipeline(*, source: Source = "topic", prefix: str = "", name: str = "voip_stream") -> Pipeline:
    """The graph, with a sink that discards its rows."""
    p = Pipeline(name)
    [output] = add(p, source=source, prefix=prefix)
    p.write("sink", reads=output, format="noop")
    return p


def add(p: Pipeline, *, source: Source = "topic", prefix: str = "") -> tuple[str, ...]:
    """Add the input and the operators to a pipeline; return the name of the node that the sink reads.

    The topic's name begins with `prefix`.
    """
    from treadle.workloads.voip_stream import operators

    add_lines(p, source, prefix)
    for operator in operators.ALL:
        p.operator(operator)
    return (operators.score.__name__,)

"""K nearest neighbours, the second application of Stream-Economics (section 7): one heavy task from topic to result.

Points are drawn around three centres. Each row gets the most frequent label among the k nearest points of a fixed
labelled set, by brute force with numpy: the cost of a row is proportional to the size of that set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from treadle.model import Floats, Ints
from treadle.pipelines.api.pipeline import Pipeline

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

POINTS = "points"
DIMENSIONS = 5
CENTRES = 3
POINT = "id long, " + ", ".join(f"x{number} double" for number in range(DIMENSIONS))
COORDINATES = [f"x{number}" for number in range(DIMENSIONS)]


def reference(size: int, seed: int = 1) -> tuple[Floats, Ints]:
    """`size` points, each drawn around one of the centres, and their labels: the numbers of these centres."""
    random = np.random.default_rng(seed)
    labels = random.integers(CENTRES, size=size)
    centres = np.eye(CENTRES, DIMENSIONS) * 4.0
    return centres[labels] + random.normal(size=(size, DIMENSIONS)), labels


def point(number: int) -> dict[str, Any]:
    """A row to be labelled, made from its number alone."""
    random = np.random.default_rng([1, number])
    centre = np.eye(CENTRES, DIMENSIONS)[number % CENTRES] * 4.0
    return {"id": number, **dict(zip(COORDINATES, (centre + random.normal(size=DIMENSIONS)).tolist(), strict=True))}


def classify(points: Floats, known: Floats, labels: Ints, k: int = 5) -> Ints:
    """For each point the most frequent label of its k nearest; in a tie that of the nearest among them."""
    spread, middle = known.std(axis=0), known.mean(axis=0)
    scaled, others = (points - middle) / spread, (known - middle) / spread
    apart = (scaled**2).sum(axis=1)[:, None] - 2.0 * scaled @ others.T + (others**2).sum(axis=1)
    nearest = np.argpartition(apart, k - 1, axis=1)[:, :k]
    order = np.argsort(np.take_along_axis(apart, nearest, axis=1), axis=1)
    voted = labels[np.take_along_axis(nearest, order, axis=1)]
    counts = (voted[:, :, None] == voted[:, None, :]).sum(axis=2)
    best: Ints = np.take_along_axis(voted, counts.argmax(axis=1)[:, None], axis=1)[:, 0]
    return best


def pipeline(
    size: int = 8_000,
    *,
    minimum: float = 0.2,
    priority: float = 0.0,
    source: Literal["feed", "topic"] = "topic",
    prefix: str = "",
    name: str = "knn",
) -> Pipeline:
    """A pipeline with one task, as in the paper: it reads, labels and writes rows."""
    p = Pipeline(name)
    add(p, size, minimum=minimum, priority=priority, source=source, prefix=prefix)
    return p


def add(
    p: Pipeline,
    size: int = 8_000,
    *,
    minimum: float = 0.2,
    priority: float = 0.0,
    source: Literal["feed", "topic"] = "topic",
    prefix: str = "",
) -> None:
    """Add the task to a pipeline, also beside other applications. The topic's name begins with `prefix`."""
    if source == "topic":
        p.topic(POINTS, schema=POINT, topic=f"{prefix}{POINTS}")
    else:
        p.feed(POINTS, schema=POINT)

    @p.sink(name="labels", inputs=POINTS, priority=priority, min_accuracy=minimum)
    def labels(points: DataFrame) -> None:
        known, named = reference(size)

        def label(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for batch in batches:
                found = classify(batch[COORDINATES].to_numpy(), known, named)
                yield batch[["id"]].assign(label=found)

        labelled = points.mapInPandas(label, "id long, label long")
        labelled.write.format("noop").mode("append").save()

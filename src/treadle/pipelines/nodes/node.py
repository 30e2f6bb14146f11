"""A node of a pipeline: its name, inputs, requirements and function, and checks of these.

Here each node is checked alone; `graph` checks all nodes together.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from treadle.decide.quality import Kept, Measure
from treadle.durations import Duration, seconds
from treadle.enforce.shed import Choice
from treadle.errors import ConfigError
from treadle.estimates import WEIGHT

Function = Callable[..., Any]
Inputs = str | Sequence[str] | Mapping[str, str]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
PARTS = (0.01, 0.1, 0.5, 0.9, 1.0)
"""Shares of the rows with which an accuracy function is tested."""
ON_FAILURE = ("stop", "continue", "retry")
_LONGEST = 100  # a name becomes part of folder, socket and metric names


class Kind(StrEnum):
    """The kind of a node. Feeds and topics are sources without a Spark query of their own."""

    SOURCE = "source"
    FEED = "feed"
    TOPIC = "topic"
    OPERATOR = "operator"
    SINK = "sink"
    WRITER = "writer"

    @property
    def starts(self) -> bool:
        """Whether nodes of this kind read no other node: sources, feeds and topics."""
        return self in (Kind.SOURCE, Kind.FEED, Kind.TOPIC)

    @property
    def ends(self) -> bool:
        """Whether no other node reads nodes of this kind: sinks and writers."""
        return self in (Kind.SINK, Kind.WRITER)

    @property
    def runs(self) -> bool:
        """Whether Spark queries run nodes of this kind, and policies see them as operators. Not feeds and topics."""
        return self not in (Kind.FEED, Kind.TOPIC)


@dataclass(frozen=True)
class Node:
    """A source, operator or sink. `inputs` are in the order in which `function` takes them.

    Fields that a kind of node does not use keep their defaults. `latency_goal` is in seconds.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...] = ()
    function: Function | None = None
    arrival: str | None = None
    schema: Any = None
    topic: str | None = None
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    stateful: bool | None = None
    priority: float = 0.0
    latency_goal: float | None = None
    min_accuracy: float | None = None
    accuracy: Measure | None = None
    """The user's accuracy function, to which `min_accuracy` applies. If None, it applies to the share of rows kept."""
    shed: Choice | None = None
    on_failure: str | None = None
    """What happens when this sink fails for good, one of `ON_FAILURE`. If None, what the run says."""
    takes_batch_id: bool = False
    place: str = ""

    @property
    def where(self) -> str:
        """The node as error messages name it."""
        return named(self.kind, self.name, self.place)


def named(kind: Kind, name: str, place: str = "") -> str:
    """A node as error messages name it, with the line that defines it."""
    return f"{kind} '{name}'" + (f" ({place})" if place else "")


def place_of_definition() -> str:
    """`file.py:12` of the user's line that defines a node: the first caller outside of `treadle.pipelines`."""
    here = Path(__file__).parents[1]
    frame = sys._getframe(1)
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(here):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def check_name(name: object, where: str) -> str:
    """Return the name if it can be used for a folder, a socket and a metric."""
    if isinstance(name, str) and _NAME.fullmatch(name) and len(name) <= _LONGEST:
        return name
    raise ConfigError(
        f"{name!r} can't be a name",
        where=where,
        remedy=f"give it one of letters, digits, _ and -, at most {_LONGEST} of them: name='…'",
    )


def name_of(function: object, name: str | None, kind: Kind, place: str) -> str:
    """The given name, or else the function's own."""
    if not callable(function):
        raise ConfigError(
            f"a {kind} is made of a function, not of {function!r}",
            where=place,
            remedy=f"write @p.{kind} or @p.{kind}(…) above a def, with arguments by name",
        )
    return check_name(getattr(function, "__name__", None) if name is None else name, f"{kind} ({place})")


def parameters(function: Function, where: str) -> list[inspect.Parameter]:
    """The parameters without a default; `*args`, `**kwargs` and keyword-only ones are refused."""
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise ConfigError(
                f"the function takes {stars}{parameter.name}, so its inputs can't be determined",
                where=where,
                remedy="write a parameter for each input",
            )
        if parameter.default is not parameter.empty:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise ConfigError(
                f"the function takes '{parameter.name}' by keyword only",
                where=where,
                remedy="move it before the *, or give it a default if it is no input",
            )
        required.append(parameter)
    return required


def inputs_of(function: Function, inputs: Inputs | None, where: str) -> tuple[str, ...]:
    """The names of an operator's inputs, in the order of its parameters: those of the parameters, or of `inputs`."""
    names = [parameter.name for parameter in parameters(function, where)]
    if not names:
        raise ConfigError(
            "reads nothing: its function has no parameter without a default",
            where=where,
            remedy="name an input as its parameter, or make it a source",
        )
    if inputs is None:
        return tuple(names)
    if isinstance(inputs, Mapping):
        if set(inputs) - set(names):
            odd = sorted(set(inputs) - set(names))[0]
            raise ConfigError(
                f"inputs has '{odd}', which is no parameter",
                where=where,
                remedy=f"its parameters are {', '.join(names)}",
            )
        given = [inputs.get(name, name) for name in names]
    else:
        given = [inputs] if isinstance(inputs, str) else list(inputs)
        if len(given) != len(names):
            raise ConfigError(
                f"inputs has {len(given)} names, but the function takes {len(names)} ({', '.join(names)})",
                where=where,
                remedy="name one input for each parameter without a default",
            )
    return tuple(check_input(name, where) for name in given)


def sink_inputs(function: Function, inputs: Inputs | None, where: str) -> tuple[tuple[str, ...], bool]:
    """Return the input of a sink, as a tuple of one name, and whether its function also takes a batch id."""
    required = parameters(function, where)
    every = list(inspect.signature(function).parameters.values())
    takes_id = len(required) == 2 or (len(every) > 1 and every[1].name == "batch_id")
    if len(required) not in (1, 2):
        raise ConfigError(
            f"the function takes {len(required)} parameters",
            where=where,
            remedy="a sink takes the rows of one input and optionally the batch id: def name(input, batch_id)",
        )
    given: Any = required[0].name if inputs is None else inputs
    names = [given] if isinstance(given, str) else list(given.values() if isinstance(given, Mapping) else given)
    if len(names) != 1:
        raise ConfigError(
            f"reads {len(names)} inputs", where=where, remedy="a sink reads one: join them in an operator"
        )
    return (check_input(names[0], where),), takes_id


def check_input(name: object, where: str) -> str:
    """Return an input's name if it is text. A likely mistake is to pass the decorated function instead."""
    if isinstance(name, str):
        return name
    hint = f"'{name.__name__}'" if hasattr(name, "__name__") else "its name"
    raise ConfigError(f"an input is given as {name!r}", where=where, remedy=f"write {hint}, as text")


def check_priority(priority: object, where: str) -> float:
    """Return a priority, a finite number; higher is more urgent."""
    if isinstance(priority, int | float) and not isinstance(priority, bool) and math.isfinite(priority):
        return float(priority)
    raise ConfigError(f"priority is {priority!r}", where=where, remedy="give a number, higher is more urgent")


def check_goal(goal: Duration | None, where: str) -> float | None:
    """Return a latency goal in seconds."""
    return None if goal is None else seconds(goal, what="latency_goal", where=where)


def check_accuracy(accuracy: object, where: str) -> float | None:
    """Return the minimum accuracy, a number from 0 to 1."""
    if accuracy is None:
        return None
    if isinstance(accuracy, int | float) and not isinstance(accuracy, bool) and 0 <= accuracy <= 1:
        return float(accuracy)
    raise ConfigError(f"min_accuracy is {accuracy!r}", where=where, remedy="give a number from 0 to 1, as 0.9")


def check_on_failure(wish: object, where: str) -> str | None:
    """Return what happens when a sink fails for good, if it is one of `ON_FAILURE` or None."""
    if wish is None or wish in ON_FAILURE:
        return None if wish is None else str(wish)
    raise ConfigError(f"on_failure is {wish!r}", where=where, remedy=f"use one of {', '.join(ON_FAILURE)}")


def check_measure(measure: object, minimum: object, where: str) -> Measure | None:
    """Return the accuracy function if its values are 0 to 1 and never fall while the share of rows kept rises."""
    if measure is None:
        return None
    if not callable(measure):
        remedy = "give treadle.relative_error('column'), or a function of treadle.Kept"
        raise ConfigError(f"accuracy is {measure!r}", where=where, remedy=remedy)
    if minimum is None:
        raise ConfigError("has an accuracy without a min_accuracy", where=where, remedy="add min_accuracy=0.9")
    found = [_measured(measure, part, where) for part in PARTS]
    if not all(0.0 <= low <= high <= 1.0 for low, high in pairwise(found)):
        told = ", ".join(f"{part:g}: {each:.3g}" for part, each in zip(PARTS, found, strict=True))
        remedy = "return 0 to 1, and never less for a larger part"
        raise ConfigError(f"its accuracy by part of the rows kept is {told}", where=where, remedy=remedy)
    return measure


def _measured(measure: Measure, part: float, where: str) -> float:
    try:
        return float(measure(Kept(part, 100.0, 2.0)))
    except Exception as error:
        remedy = "it is called with a treadle.Kept: part, rate, spread"
        raise ConfigError(f"its accuracy raised {type(error).__name__}: {error}", where=where, remedy=remedy) from error


def check_shed(shed: object, where: str) -> Choice | None:
    """Return the choice of rows to drop first, if it is None or a `Choice`."""
    if shed is None or isinstance(shed, Choice):
        return shed
    remedy = "give by_utility('column') or by_key('column'), both of treadle"
    raise ConfigError(f"shed is {shed!r}", where=where, remedy=remedy)


def check_schema(schema: Any, where: str, *, needed: bool) -> Any:
    """Return a schema if it is DDL text or a StructType. Spark checks its columns when the pipeline runs."""
    if schema is None and not needed:
        return None
    if (isinstance(schema, str) and schema.strip()) or hasattr(schema, "jsonValue"):
        if WEIGHT in str(schema) and WEIGHT in _names(schema):
            raise not_yours(where)
        return schema
    problem = "has no schema" if schema is None else f"its schema is {schema!r}"
    raise ConfigError(problem, where=where, remedy="give one as schema='id long, ts timestamp' or a StructType")


def check_topic(topic: object, where: str) -> str:
    """Return a topic's name if Kafka accepts it."""
    if isinstance(topic, str) and _TOPIC.fullmatch(topic) and topic not in (".", ".."):
        return topic
    raise ConfigError(f"topic is {topic!r}", where=where, remedy="use letters, digits, '.', '_' and '-', at most 249")


def check_options(options: Mapping[str, object] | None, where: str) -> dict[str, str]:
    """Return the options of a reader or writer as text, which Spark wants."""
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(f"options is {options!r}", where=where, remedy="give a dict of names and values")
    # As Spark's own readers do, write True as "true".
    return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in (options or {}).items()}


def not_yours(where: str) -> ConfigError:
    """The error for a user's column with the name of Treadle's weight column: shedding would multiply its values."""
    return ConfigError(
        f"has a column '{WEIGHT}', a name that Treadle uses for the weight of kept rows",
        where=where,
        remedy="give the column another name",
    )


def _names(schema: Any) -> list[str]:
    """The column names of a schema; empty if our parser (`ddl`) can't read it."""
    from treadle.pipelines.nodes import ddl

    with suppress(ConfigError):
        return list((ddl.parse(schema) if isinstance(schema, str) else schema).names)
    return []

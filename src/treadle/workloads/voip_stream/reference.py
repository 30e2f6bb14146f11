"""VoipStream in plain Python: a function for each operator, on lists of rows in the order of the input.

All inputs of a call that is matched (in `acd`, `url`, `fofir` and `score`) have the call's own event time. So the
time-out of unmatched calls, which bounds the state on Spark, never decides about a result, and is not needed here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from treadle.workloads.voip_stream import parameters
from treadle.workloads.voip_stream.parameters import FAST, SLOW, Decay
from treadle.workloads.voip_stream.records import CALL


class Call(NamedTuple):
    """A call. `id` is the number of its input record. `answer_ts` is in seconds since 1970, `duration` in seconds."""

    id: int
    calling: int
    called: int
    answer_ts: int
    duration: int
    established: bool
    new_callee: bool = False
    ecr: float = -1.0


class Copy(NamedTuple):
    """A call as one of its two numbers sees it, `key`: whether this number has received it."""

    call: Call
    key: int
    received: bool


class Value(NamedTuple):
    """What an operator has computed for a call."""

    id: int
    calling: int
    answer_ts: int
    value: float


class Row(NamedTuple):
    """What the sink gets for a call: the score of its caller, and the three parts of it."""

    id: int
    calling: int
    answer_ts: int
    fofir: float
    url: float
    acd: float
    score: float


def run(lines: Iterable[str]) -> dict[str, list[Row]]:
    """Return what the sink gets for these input records, which are numbered from 0."""
    calls = dispatcher(parser(lines))
    rate = ecr(calls)
    duration = acd(ct24(calls), ecr24(calls), global_acd(calls))
    ratio = fofir(rate, rcr(pre_rcr(calls)))
    return {"score": score(ratio, url(encr(calls), rate), duration)}


def parser(lines: Iterable[str]) -> list[Call]:
    """Parse each line; leave out those that are no calls."""
    found = []
    for number, line in enumerate(lines):
        if not re.fullmatch(CALL, line):
            continue
        calling, called, answered, duration, established = line.split(",")
        try:
            at = datetime.strptime(answered, "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()
        except ValueError:
            continue
        found.append(Call(number, int(calling), int(called), math.floor(at), int(duration), established == "true"))
    return found


def dispatcher(calls: Iterable[Call]) -> list[Call]:
    """Mark calls between pairs of numbers that are new. A pair is new if it has had no call for a while.

    Event time never goes back. When a recording begins again, its times go on from the last one, and all pairs are new.
    """
    seen: dict[tuple[int, int], int] = {}
    found: list[Call] = []
    shift = 0
    for call in calls:
        now = call.answer_ts + shift
        if found:
            newest = found[-1].answer_ts
            if now < newest - parameters.RESTART:
                shift = newest - call.answer_ts
                seen.clear()
            now = max(newest, call.answer_ts + shift)
        pair = call.calling, call.called
        new = pair not in seen or now - seen[pair] > parameters.REMEMBERED
        seen[pair] = now
        found.append(call._replace(answer_ts=now, new_callee=new))
    return found


def ct24(calls: Iterable[Call]) -> list[Value]:
    """Talk time of the caller with new callees, decaying slowly."""
    chosen = [call for call in calls if call.established and call.new_callee]
    return _counted(chosen, [call.duration for call in chosen], SLOW)


def ecr24(calls: Iterable[Call]) -> list[Value]:
    """Rate of established calls of the caller, decaying slowly."""
    chosen = [call for call in calls if call.established]
    return _counted(chosen, [1.0] * len(chosen), SLOW)


def ecr(calls: Iterable[Call]) -> list[Value]:
    """Rate of established calls of the caller, decaying fast."""
    chosen = [call for call in calls if call.established]
    return _counted(chosen, [1.0] * len(chosen), FAST)


def encr(calls: Iterable[Call]) -> list[Value]:
    """Rate of established calls of the caller to new callees, decaying fast."""
    chosen = [call for call in calls if call.established and call.new_callee]
    return _counted(chosen, [1.0] * len(chosen), FAST)


def pre_rcr(calls: Iterable[Call]) -> list[Copy]:
    """Two copies of each call, for the number that makes it and for the number that receives it."""
    return [copy for call in calls for copy in (Copy(call, call.calling, False), Copy(call, call.called, True))]


def rcr(copies: Iterable[Copy]) -> list[Value]:
    """Rate of established calls that the caller receives."""
    counters: dict[int, Counter] = {}
    found = []
    for call, key, received in copies:
        if call.established:
            counter = counters.setdefault(key, Counter(FAST))
            if received:
                counter.add(1.0, call.answer_ts)
            else:
                found.append(_value(call, counter.estimate(call.answer_ts)))
    return found


def global_acd(calls: Iterable[Call]) -> list[Value]:
    """Average duration of all calls until now: their mean at first, then exponentially weighted."""
    found: list[Value] = []
    first: list[int] = []
    average = 0.0
    for call in calls:
        if len(first) < parameters.WARM_UP:
            first.append(call.duration)
            average = sum(first) / len(first)
        else:
            average = parameters.ALPHA * call.duration + (1 - parameters.ALPHA) * average
        found.append(_value(call, average))
    return found


def acd(ct24: Iterable[Value], ecr24: Iterable[Value], global_acd: Iterable[Value]) -> list[Value]:
    """Average duration of the caller's calls in proportion to that of all calls, as a part of the score."""
    return [
        _value(call, partial_score(ratio(ratio(talk, rate), average), *parameters.ACD))
        for call, (talk, rate, average) in _matched(ct24, ecr24, global_acd)
    ]


def url(encr: Iterable[Value], ecr: Iterable[Value]) -> list[Value]:
    """Share of new callees among the caller's calls, as a part of the score."""
    return [_value(call, partial_score(ratio(new, rate), *parameters.URL)) for call, (new, rate) in _matched(encr, ecr)]


def fofir(ecr: Iterable[Value], rcr: Iterable[Value]) -> list[Value]:
    """Calls made in proportion to calls received by the caller (fan-out, fan-in), as a part of the score."""
    return [
        _value(call, partial_score(ratio(made, received), *parameters.FOFIR))
        for call, (made, received) in _matched(ecr, rcr)
    ]


def score(fofir: Iterable[Value], url: Iterable[Value], acd: Iterable[Value]) -> list[Row]:
    """Weighted sum of the three parts, for each call that has all of them."""
    found = []
    for call, parts in _matched(fofir, url, acd):
        total = sum(weight * part for weight, part in zip(parameters.WEIGHTS, parts, strict=True))
        fan_out, new, duration = parts
        found.append(Row(call.id, call.calling, call.answer_ts, fan_out, new, duration, total))
    return found


class Counter:
    """A counter that decays: `c <- c * beta^dt + q * ln(1/beta)`."""

    def __init__(self, decay: Decay) -> None:
        self.decay = decay
        self.value = 0.0
        self.at: int | None = None
        """When something was added for the last time."""

    def estimate(self, now: int) -> float:
        """Return the value that the counter has decayed to."""
        if self.at is None or now - self.at > self.decay.forget:
            return 0.0
        return self.value * float(self.decay.beta ** (now - self.at))

    def add(self, quantity: float, now: int) -> float:
        """Add a quantity; return the new value."""
        self.value, self.at = self.estimate(now) + quantity * self.decay.weight, now
        return self.value


def ratio(above: float, below: float) -> float:
    """Divide two numbers that are not negative; 0/0 is 0, everything else by 0 is infinite."""
    if above == 0:
        return 0.0
    return math.inf if below == 0 else above / below


def partial_score(value: float, low: float, high: float) -> float:
    """Scale a ratio so that `low` becomes 0 and `high` becomes 1, and limit it to this range."""
    return min(max((value - low) / (high - low), 0.0), 1.0)


def _counted(calls: Iterable[Call], quantities: Iterable[float], decay: Decay) -> list[Value]:
    """Add to the counter of each caller, and return its new value."""
    counters: dict[int, Counter] = {}
    found = []
    for call, quantity in zip(calls, quantities, strict=True):
        counter = counters.setdefault(call.calling, Counter(decay))
        found.append(_value(call, counter.add(quantity, call.answer_ts)))
    return found


def _value(call: Call | Value, value: float) -> Value:
    return Value(call.id, call.calling, call.answer_ts, value)


def _matched(*inputs: Iterable[Value]) -> Iterator[tuple[Value, list[float]]]:
    """The calls that all inputs have, with their values."""
    by_call = [{(row.calling, row.answer_ts, row.id): row for row in rows} for rows in inputs]
    for key, row in by_call[0].items():
        if all(key in rows for rows in by_call):
            yield row, [rows[key].value for rows in by_call]

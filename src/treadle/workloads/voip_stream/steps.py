"""The operators of VoipStream that keep state, as functions of pandas tables. They run in Spark's Python workers.

A step gets a table for each input, and its state. It returns its output and the new state. Rows of all tables are in
the order of their ids, also from one call of the step to the next. A call is known by its id, and so is the pair
(calling, answer_ts), by which the paper's operators match their inputs: two calls that a number makes within one second
stay apart.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from treadle.model import Floats, Ints
from treadle.workloads.voip_stream import parameters
from treadle.workloads.voip_stream.parameters import FAST, SLOW, Decay
from treadle.workloads.voip_stream.tables import Table, kept, recalled

Tables = Sequence[pd.DataFrame]
Result = tuple[pd.DataFrame, Any]
PAIRS = np.dtype([("key", "<i8"), ("at", "<i8")])
COUNTERS = np.dtype([("key", "<i8"), ("at", "<i8"), ("value", "<f8")])
NEVER = -(2**62)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_CALL = ["id", "created", "calling", "answer_ts"]


class Step(NamedTuple):
    """A step, the columns that it reads besides id and created, the rows that it reads, and the columns that it makes.

    `where` is a condition for Spark and for pandas. `created` is a number of microseconds here.
    """

    function: Callable[[Tables, Any], Result]
    reads: tuple[str, ...]
    makes: str
    where: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of the columns that it makes."""
        return [column.split()[0] for column in self.makes.split(", ")]


class Program(NamedTuple):
    """Steps that run one after another, each with the numbers of the tables that it reads.

    Tables 0 to `leaves` - 1 are the inputs of the program. The next numbers are the outputs of the steps, in order.
    """

    leaves: int
    steps: tuple[tuple[str, tuple[int, ...]], ...]


def run(
    program: Program, rows: pd.DataFrame, states: Sequence[bytes | None] | None
) -> tuple[pd.DataFrame, list[bytes]]:
    """Run a program on rows with the number of their table in `input`; return its last output and all states."""
    rows = rows.sort_values("id", kind="stable", ignore_index=True)
    tables = [rows[rows["input"] == number] for number in range(program.leaves)]
    after = []
    for number, (name, reads) in enumerate(program.steps):
        step = STEPS[name]
        given = [tables[each] if each < program.leaves else _chosen(tables[each], step) for each in reads]
        before = states[number] if states is not None else None
        made, state = step.function(given, None if before is None else pickle.loads(before))
        tables.append(made[step.names])
        after.append(pickle.dumps(state))
    return tables[-1], after


def dispatcher(tables: Tables, state: Any) -> Result:
    """Marks calls between pairs of numbers that are new, and lets event time go on where a recording begins again."""
    [calls] = tables
    seen, newest, shift = state or (np.empty(0, PAIRS), NEVER, 0)
    pairs = _pairs(calls)
    known = recalled(seen, pairs)
    times, new = [], []
    for pair, answered in zip(pairs.tolist(), calls["answer_ts"].tolist(), strict=True):
        if answered + shift < newest - parameters.RESTART:
            shift, seen, known = newest - answered, seen[:0], {}
        newest = max(newest, answered + shift)
        times.append(newest)
        new.append(pair not in known or newest - known[pair][0] > parameters.REMEMBERED)
        known[pair] = (newest,)
    made = calls.assign(answer_ts=np.array(times, np.int64), new_callee=np.array(new, np.bool_), ecr=-1.0)
    return made, (kept(seen, known, newest - parameters.REMEMBERED), newest, shift)


def ct24(tables: Tables, state: Any) -> Result:
    """Adds the duration of a call to a new callee to a counter of its caller."""
    return _counted(tables, state, tables[0]["duration"].tolist(), SLOW)


def ecr24(tables: Tables, state: Any) -> Result:
    """Adds 1 for an established call to a counter of its caller, which decays slowly."""
    return _counted(tables, state, [1.0] * len(tables[0]), SLOW)


def ecr(tables: Tables, state: Any) -> Result:
    """Adds 1 for an established call to a counter of its caller, which decays fast."""
    return _counted(tables, state, [1.0] * len(tables[0]), FAST)


def encr(tables: Tables, state: Any) -> Result:
    """Adds 1 for an established call to a new callee to a counter of its caller."""
    return _counted(tables, state, [1.0] * len(tables[0]), FAST)


def pre_rcr(tables: Tables, _: Any) -> Result:
    """Copies each call for its two numbers. It keeps no state, and is a step only where it runs between two others."""
    [calls] = tables
    made, received = (
        calls.assign(key=calls["calling"], received=False),
        calls.assign(key=calls["called"], received=True),
    )
    return pd.concat([made, received]).sort_values("id", kind="stable", ignore_index=True), None


def rcr(tables: Tables, state: Any) -> Result:
    """Adds 1 for the copy of the number that is called; for the other copy, asks how many calls its number receives."""
    copies = tables[0].sort_values(["id", "received"], ignore_index=True)
    received = copies["received"].to_numpy(np.bool_)
    added = [1.0 if each else None for each in received.tolist()]
    values, state = _decayed(state, copies["key"].to_numpy(), copies["answer_ts"].to_numpy(), added, FAST)
    return copies[~received][_CALL].assign(value=values[~received]), state


def global_acd(tables: Tables, state: Any) -> Result:
    """Attaches the average duration of all calls until then to each call."""
    [calls] = tables
    count, average = state or (0, 0.0)
    averages = []
    for duration in calls["duration"].tolist():
        count += 1
        average += (duration - average) * (1 / count if count <= parameters.WARM_UP else parameters.ALPHA)
        averages.append(average)
    return calls[_CALL].assign(value=np.array(averages, np.float64)), (count, average)


def acd(tables: Tables, state: Any) -> Result:
    """Compares the average duration of the caller's calls (ct24 by ecr24) with that of all calls."""
    calls, (talk, rate, average), state = _matched(tables, state)
    return calls.assign(value=_partial_score(_ratio(_ratio(talk, rate), average), *parameters.ACD)), state


def url(tables: Tables, state: Any) -> Result:
    """Compares the caller's calls to new callees with all that it makes (encr by ecr)."""
    calls, (new, rate), state = _matched(tables, state)
    return calls.assign(value=_partial_score(_ratio(new, rate), *parameters.URL)), state


def fofir(tables: Tables, state: Any) -> Result:
    """Compares the calls that the caller makes with those that it receives (ecr by rcr)."""
    calls, (made, received), state = _matched(tables, state)
    return calls.assign(value=_partial_score(_ratio(made, received), *parameters.FOFIR)), state


def score(tables: Tables, state: Any) -> Result:
    """Adds up the three parts of a call's score, by their weights."""
    calls, parts, state = _matched(tables, state)
    total = sum(weight * part for weight, part in zip(parameters.WEIGHTS, parts, strict=True))
    return calls.assign(fofir=parts[0], url=parts[1], acd=parts[2], score=total), state


def _chosen(table: pd.DataFrame, step: Step) -> pd.DataFrame:
    return table if step.where is None else table.query(step.where)


def _pairs(calls: pd.DataFrame) -> Ints:
    """A hash of calling and called number for each call. Among 100,000 pairs two have the same in one of 10^9 cases."""
    calling, called = (calls[name].to_numpy(np.int64).view(np.uint64) for name in ("calling", "called"))
    pairs: Ints = (calling * _MIX + called).view(np.int64)
    return pairs


def _counted(tables: Tables, state: Any, added: Sequence[float], decay: Decay) -> Result:
    """Add to the counters of the callers, and attach their new values to the calls."""
    [calls] = tables
    values, state = _decayed(state, calls["calling"].to_numpy(), calls["answer_ts"].to_numpy(), added, decay)
    return calls[_CALL].assign(value=values), state


def _decayed(
    counters: Table | None, keys: Ints, times: Ints, added: Sequence[float | None], decay: Decay
) -> tuple[Floats, Table]:
    """Return the value of each key's counter at its time, after adding what is to be added (None: nothing)."""
    counters = np.empty(0, COUNTERS) if counters is None else counters
    known = recalled(counters, keys)
    values = []
    for key, now, quantity in zip(keys.tolist(), times.tolist(), added, strict=True):
        at, value = known.get(key, (now, 0.0))
        value = value * decay.beta ** (now - at) if now - at <= decay.forget else 0.0
        if quantity is not None:
            value += quantity * decay.weight
            known[key] = (now, value)
        values.append(value)
    newest = int(times[-1]) if len(times) else NEVER
    return np.array(values, np.float64), kept(counters, known, newest - decay.forget)


def _matched(tables: Tables, state: Any) -> tuple[pd.DataFrame, Floats, Any]:
    """Return the calls whose values are now known from all inputs, and an array of these values for each input.

    The state has the calls that wait for values (NaN where there is none yet), and for each input the event time that
    it has reached. Each input is in order, so a value that an input has passed will not come from it any more. Whether
    a call is given up depends on the rows of the inputs only, not on how far ahead one input is, or on micro-batches.
    """
    pending = np.dtype([("key", "<i8"), ("at", "<i8"), ("values", "<f8", (len(tables),))])
    before, reached = state or (np.empty(0, pending), [NEVER] * len(tables))
    rows = pd.concat(tables, ignore_index=True)
    ids = np.union1d(before["key"], rows["id"].to_numpy())
    waiting = np.empty(len(ids), pending)
    waiting["key"], waiting["values"] = ids, np.nan
    waiting[np.searchsorted(ids, before["key"])] = before
    reached = [
        int(table["answer_ts"].iloc[-1]) if len(table) else at for table, at in zip(tables, reached, strict=True)
    ]
    for number, table in enumerate(tables):
        places = np.searchsorted(ids, table["id"].to_numpy())
        waiting["at"][places] = table["answer_ts"].to_numpy()
        waiting["values"][places, number] = table["value"].to_numpy()
    complete = ~np.isnan(waiting["values"]).any(axis=1)
    since = max(min(reached), max(reached) - parameters.LAG) - parameters.TIMEOUT
    calls = rows.drop_duplicates("id").set_index("id").loc[ids[complete]].reset_index()[_CALL]
    return calls, waiting["values"][complete].T, (waiting[~complete & (waiting["at"] >= since)], reached)


def _ratio(above: Floats, below: Floats) -> Floats:
    """Divide numbers that are not negative; 0/0 is 0, everything else by 0 is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(above == 0, 0.0, above / below)


def _partial_score(values: Floats, low: float, high: float) -> Floats:
    """Scale ratios so that `low` becomes 0 and `high` becomes 1, and limit them to this range."""
    return np.clip((values - low) / (high - low), 0.0, 1.0)


_VALUE = ("calling", "answer_ts", "value")
_MAKES_VALUE = "id long, created long, calling long, answer_ts long, value double"
_FIELDS = "id long, created long, calling long, called long, answer_ts long, duration long, established boolean"
_MAKES_COPIES = "id long, created long, calling long, answer_ts long, established boolean, key long, received boolean"
_MAKES_SCORE = "id long, created long, calling long, answer_ts long, fofir double, url double, acd double, score double"
_NEW = "established and new_callee"
STEPS = {
    "dispatcher": Step(
        dispatcher,
        ("calling", "called", "answer_ts", "duration", "established"),
        f"{_FIELDS}, new_callee boolean, ecr double",
    ),
    "ct24": Step(ct24, ("calling", "answer_ts", "duration"), _MAKES_VALUE, _NEW),
    "ecr24": Step(ecr24, ("calling", "answer_ts"), _MAKES_VALUE, "established"),
    "global_acd": Step(global_acd, ("calling", "answer_ts", "duration"), _MAKES_VALUE),
    "ecr": Step(ecr, ("calling", "answer_ts"), _MAKES_VALUE, "established"),
    "encr": Step(encr, ("calling", "answer_ts"), _MAKES_VALUE, _NEW),
    "pre_rcr": Step(pre_rcr, ("calling", "called", "answer_ts", "established"), _MAKES_COPIES),
    "rcr": Step(rcr, ("calling", "answer_ts", "key", "received"), _MAKES_VALUE, "established"),
    "acd": Step(acd, _VALUE, _MAKES_VALUE),
    "url": Step(url, _VALUE, _MAKES_VALUE),
    "fofir": Step(fofir, _VALUE, _MAKES_VALUE),
    "score": Step(score, _VALUE, _MAKES_SCORE),
}
"""All steps by the names of their operators, in an order in which each comes after those that it reads."""

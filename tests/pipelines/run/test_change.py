"""A pipeline gains and loses sinks while rows flow: what stays loses and doubles no row, and its queries go on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import LONG, named, until
from support import treadle as command
from treadle.errors import ConfigError, EngineError, TreadleError
from treadle.pipelines.run.start import start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from treadle.pipelines.run.run import Run

ROUNDS = 30 if "TREADLE_SOAK" in os.environ else 1
EXAMPLE = Path(__file__).parents[3] / "examples" / "05_medallion.py"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, own_sockets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Examples write where they are started."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Numbers:
    """A feed, an operator, and sinks that keep what they get; `fill` lets rows flow."""

    def __init__(self) -> None:
        self.p = treadle.Pipeline(named("change"))
        self.came: dict[str, list[int]] = {}
        self.batches: dict[str, list[int]] = {}
        self.count = 0
        self.p.feed("fed", schema="a bigint")
        self.operator("copied", "fed")

    def operator(self, name: str, inputs: str) -> None:
        def op(rows: DataFrame) -> DataFrame:
            return rows.selectExpr("a")

        self.p.operator(name=name, inputs=inputs)(op)

    def sink(self, name: str, inputs: str, **options: Any) -> None:
        came = self.came.setdefault(name, [])
        batches = self.batches.setdefault(name, [])

        def out(rows: DataFrame, batch_id: int) -> None:
            if batch_id not in batches:  # a batch that is repeated has the same rows
                came.extend(sorted(row.a for row in rows.collect()))
                batches.append(batch_id)

        self.p.sink(name=name, inputs=inputs, **options)(out)

    @contextmanager
    def fill(self, run: Run) -> Iterator[None]:
        feed, done = run.feed("fed"), threading.Event()

        def work() -> None:
            while not done.is_set():
                feed.append([{"a": a} for a in range(self.count, self.count + 10)])
                self.count += 10
                time.sleep(0.01)

        filler = threading.Thread(target=work)
        filler.start()
        try:
            yield
        finally:
            done.set()
            filler.join()

    def flows(self, run: Run, *sinks: str) -> None:
        """Rows come out that came in after now."""
        mark = self.count
        until(lambda: all(self.came[name] and self.came[name][-1] > mark for name in sinks), run)

    def is_whole(self, name: str) -> bool:
        """Whether a sink has got all rows, each once."""
        return self.came[name] == list(range(self.count))


def without_gap(rows: list[int]) -> bool:
    return rows == list(range(rows[0], rows[-1] + 1))


def queries(run: Run) -> dict[str, str]:
    """The run of each query, which is another one after a restart."""
    return {name: str(hop.query.runId) for name, hop in run.hops.items() if hop.query is not None}


def card(folder: Path) -> str:
    return (folder / "pipeline.json").read_text()


@pytest.mark.parametrize("layout", ["hops", "fused"])
def test_sinks_come_and_go_while_rows_flow(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    numbers = Numbers()
    numbers.sink("one", "copied")
    numbers.sink("two", "fed")
    folder = tmp_path / "work"
    with numbers.p.start(spark, folder=folder, layout=layout) as run, numbers.fill(run):
        before = queries(run)
        numbers.flows(run, "one", "two")
        for number in range(ROUNDS):
            late = f"late{number}"
            numbers.operator(f"of_{late}", "copied")
            numbers.sink(late, f"of_{late}", priority=5)  # the highest: its query would be named after it
            assert [late] == [name for name in run.add(late).added if name in numbers.came]
            numbers.flows(run, "one", "two", late)
            found = run.remove("two")
            assert (found.removed, found.added, found.changed) == (("two",), (), ())
            assert numbers.came["two"][-1] >= numbers.came["two"][0]
            numbers.flows(run, "one", late)
            run.add("two")
            numbers.flows(run, "one", "two", late)
            assert run.remove(late, dry_run=True).removed
            run.remove(late)
            assert late not in run.hops
            assert without_gap(numbers.came[late])
            assert numbers.batches[late] == sorted(numbers.batches[late])
        assert queries(run)["one"] == before["one"]
        assert set(run.gate.ranks) == {hop.id for hop in run.hops.values()}
        until(lambda: all(rank == rank for rank in run.gate.ranks.values()), run)  # the policy ranks all of them
        kept = [change for change in run.history if change.setting == "nodes"]
        assert kept[-1].before[-1].startswith("late")
    run.check()
    restarted = start(numbers.p.restricted(["one", "two"]), spark, folder=folder, layout=layout)
    with restarted as run:
        run.stop(drain=True, timeout=LONG)
    assert numbers.is_whole("one")
    assert numbers.came["two"] == sorted(set(numbers.came["two"]))  # it missed rows while it was away, and doubled none
    assert numbers.came["two"][-1] == numbers.count - 1
    assert numbers.batches["two"] == list(range(len(numbers.batches["two"])))
    with pytest.raises(EngineError, match="another graph"):
        numbers.p.start(spark, folder=folder, layout=layout)


def test_what_can_not_be_done_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    def version(
        change: Callable[[treadle.Pipeline], None] | None = None, text: str = "a + 1 AS b", called: str = ""
    ) -> treadle.Pipeline:
        p = treadle.Pipeline(called or name)
        p.feed("fed", schema="a bigint")
        p.operator(name="op", inputs="fed")(lambda rows: rows.selectExpr(text))
        p.operator(name="sums", inputs="op")(lambda rows: rows.groupBy().count())
        p.write("out", reads="op", format="noop")
        p.write("totals", reads="sums", format="noop")
        if change is not None:
            change(p)
        return p

    def broken(p: treadle.Pipeline) -> None:
        p.operator(name="bad", inputs="op")(lambda rows: rows.selectExpr("nothing"))
        p.write("late", reads="bad", format="noop")

    def unwritable(p: treadle.Pipeline) -> None:
        p.write("late", reads="op", format="no-such-format")

    def promised(p: treadle.Pipeline) -> None:
        p.write("late", reads="op", format="noop", min_accuracy=0.5)

    def stateful(p: treadle.Pipeline) -> None:
        p._nodes["sums"] = other._nodes["sums"]

    other = treadle.Pipeline("other")
    other.operator(name="sums", inputs="op")(lambda rows: rows.groupBy().sum("b"))
    name = named("refused")
    wrong: list[tuple[Any, str]] = [
        (version(text="cast(a AS string) AS b"), "its column 'b' was int64 and would be string"),
        (version(text="a"), "its column 'a' was missing"),
        (version(broken), "nothing"),
        (version(unwritable), "no-such-format"),
        (version(promised), "min_accuracy"),
        (version(stateful), "keeps state"),
        (version(called="other"), "it is pipeline 'other', not"),
        (other, "is empty|reads 'op', which does not exist"),
        (tmp_path / "nowhere.py", "no such file"),
    ]
    (tmp_path / "torn.py").write_text("import treadle\np = treadle.Pipeline(")
    wrong.append((tmp_path / "torn.py", "SyntaxError"))
    with version().start(spark, folder=tmp_path / "work") as run:
        folder = tmp_path / "work"
        files = {path.name for path in (folder / "checkpoints").iterdir()}
        before = queries(run), json_of(run), json_of(card(folder)), sorted(run.gate.ranks), sorted(run.channels)
        for what, why in wrong:
            with pytest.raises(TreadleError, match=why):
                run.reload(what)
            after = queries(run), json_of(run), json_of(card(folder)), sorted(run.gate.ranks), sorted(run.channels)
            assert after == before, what
        with pytest.raises(ConfigError, match="no sink would be left"):
            run.remove("out", "totals")
        with pytest.raises(ConfigError, match="no sink 'op' runs"):
            run.remove("op")
        with pytest.raises(ConfigError, match="has no node 'lat'"):
            run.add("lat")
        assert run.reload(version()).nothing
        assert {path.name for path in (folder / "checkpoints").iterdir()} - {"late"} == files
        found = run.reload(version(text="a + 2 AS b"))
        assert found.changed == ("op",)
        now = queries(run)
        assert {each for each in now if now[each] != before[0][each]} == {"op"}
        run.check()


def json_of(what: Any) -> Any:
    """A comparable part of a status, or of the file that names the graph."""
    import json

    if isinstance(what, str):
        return {key: value for key, value in json.loads(what).items() if key != "removed"}
    seen = what.status()
    return seen["failed"], sorted(seen["hops"]), sorted(seen["channels"])


def test_the_example_is_reloaded_while_rows_flow_and_what_stays_gets_each_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "medallion.py"
    text = EXAMPLE.read_text()
    file.write_text(text)
    p = treadle.load(file)
    late = '@p.sink\ndef late(payments, batch_id):\n    save(payments, "late", batch_id)\n\n\ndef save('
    silver = text[text.index("@p.sink\ndef silver") : text.index("@p.operator\ndef per_card")]

    def table(name: str) -> DataFrame:
        return spark.read.parquet(f"{tmp_path}/out/medallion/{name}")

    def ids(name: str) -> list[int]:
        return sorted(row.id for row in table(name).select("id").collect())

    def rows_in(name: str) -> int:
        return int(run.status()["hops"][name]["rows_in"])

    with p.start(spark, policy="min-latency", folder=tmp_path / "work") as run:
        before = queries(run)
        until(lambda: all(rows_in(sink) for sink in ("bronze", "silver", "alert")), run)
        for _ in range(ROUNDS):
            file.write_text(text.replace(silver, "").replace("def save(", late))
            assert command(monkeypatch, "ctl", "reload", "medallion.py", "--dry-run") == 0
            assert sorted(run.hops) == sorted(before)
            assert command(monkeypatch, "ctl", "reload", "medallion.py") == 0
            assert capsys.readouterr().out.count("+ late: starts\n- silver: works off its rows and ends\n") == 2
            until(lambda: rows_in("late") > 0 and (rows_in("gold") > 0 or ROUNDS == 1), run)
            if ROUNDS > 1:
                file.write_text(text)
                assert command(monkeypatch, "ctl", "reload", "medallion.py") == 0
        file.write_text("import nothing_of_this_name")
        assert command(monkeypatch, "ctl", "reload", "medallion.py") == 2
        assert "needs the module nothing_of_this_name" in capsys.readouterr().err
        now = queries(run)
        assert {name for name in before if now.get(name) != before[name]} == {"silver"}
        run.stop(drain=True, timeout=LONG)
    raw = [int(row.n) for row in table("bronze").selectExpr("text").selectExpr(NUMBER).collect()]
    assert sorted(raw) == list(range(len(raw)))
    if list((tmp_path / "out" / "medallion" / "gold").rglob("*.parquet")):  # its windows are final only after seconds
        assert table("gold").select("window", "card").distinct().count() == table("gold").count()
    payments = [n for n in range(len(raw)) if n % 50 != 49]
    # A batch may cut the rows of two tasks anywhere, so the order of payments is not fixed, but each is checked once.
    alerts, hops = table("alert"), run.status()["hops"]
    assert hops["suspicious"]["rows_in"] == hops["payments"]["rows_out"] == len(payments)
    assert hops["suspicious"]["rows_out"] == hops["alert"]["rows_in"] == alerts.count()
    assert alerts.select("card", "id").distinct().count() == alerts.count()
    for name in ("silver", "late"):
        assert len(ids(name)) == len(set(ids(name)) & set(payments))


NUMBER = "cast(regexp_extract(text, '\"id\":([0-9]+)', 1) AS bigint) AS n"

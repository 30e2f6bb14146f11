"""Policies, engines and knobs of other packages, found through real entry points, and the page for their authors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from treadle import plugins
from treadle.cli import cli
from treadle.decide import assignment
from treadle.decide import registry as policies
from treadle.decide.transform import SCALES
from treadle.enforce import Knob, Value
from treadle.enforce import registry as enforcers
from treadle.engines import registry as engines
from treadle.errors import ConfigError, EngineError
from treadle.loop import Binding, Loop
from treadle.model import Instance, Operator, Query, ThreadRef, Topology
from treadle.testing import check_engine, check_knob, check_policy
from treadle.values import Sample, Snapshot

MODULE = '''
import numpy as np
from treadle.decide.policy import Policy
from treadle.engines.registry import EngineKind
from treadle.errors import TargetGone
from treadle.model import Operator, Query, ThreadRef, Topology
from treadle.values import Sample, Schedule

class Alphabetical(Policy):
    """Runs what comes first in the dictionary."""
    name = "alphabetical"
    def decide(self, snapshot):
        order = np.argsort(np.argsort(snapshot.topology.ids))
        return Schedule(-order.astype(float))

class Late(Policy):
    """Runs what has waited longest for its cost."""
    name = "late"
    needs = ("cost", "head_age")
    wants = ("rate", "run_wait")
    def decide(self, snapshot):
        return Schedule(snapshot["head_age"] / snapshot["cost"])

def last(snapshot, groups):
    return [groups - 1] * len(snapshot.topology)

class Sticky:
    def __call__(self, snapshot, groups):
        return last(snapshot, groups)

class Locked:
    def __init__(self):
        raise RuntimeError("no key")

class Still:
    name = "still"
    offers = frozenset({"queue"})
    now = 0.0
    def topology(self):
        return Topology.of([Query("q", (Operator("a"),))], engine="still")
    def sample(self, wanted):
        self.now += 1.0
        return Sample(self.now, {name: np.ones(1) for name in wanted & self.offers})
    def knobs(self):
        return {}

still = EngineKind("still", "stands still", frozenset({"queue"}), Still)

VALUES = {}

class Colour:
    """Paints threads."""
    name = "colour"
    per = "thread"
    def read(self, target):
        if target not in VALUES:
            raise TargetGone(f"no thread {target.tid}")
        return VALUES[target]
    def write(self, target, value):
        self.read(target)
        VALUES[target] = value

class PerGroup(Colour):
    name = "per-group"
    per = "group"

def locked():
    raise RuntimeError("no key")

number = 42
'''

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package with entry points on the path, as pip would: install("x", engines="name = module:object")."""

    def make(package: str, *, module: str = MODULE, **groups: str) -> None:
        (tmp_path / "added.py").write_text(module)
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        points = "\n".join(f"[treadle.{group}]\n{lines}\n" for group, lines in groups.items())
        (folder / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "added", raising=False)

    yield make
    sys.modules.pop("added", None)


# ---------------------------------------------------------------- all three groups


def test_a_policy_an_engine_and_a_knob_of_another_package_are_found_by_name_and_conform(install: Install) -> None:
    install(
        "x",
        policies="alphabetical = added:Alphabetical",
        engines="still = added:still",
        enforcers="colour = added:Colour",
    )
    assert policies.create("alphabetical").name == "alphabetical"
    check_policy(lambda rng: policies.create("alphabetical", rng))
    kind = engines.get("still")
    assert (kind.name, kind.help, kind.offers) == ("still", "stands still", frozenset({"queue"}))
    check_engine(kind.start)
    knob = enforcers.get("colour")
    assert (knob.name, knob.help) == ("colour", "Paints threads.")
    painted = _painted()
    check_knob(knob.make, tuple(painted), ["red", "blue"])
    assert set(painted.values()) == {"grey"}


def test_the_features_of_a_policy_of_the_user_are_shown_by_kind_by_its_name_and_by_its_class(install: Install) -> None:
    install("x", policies="alphabetical = added:Alphabetical\nlate = added:Late")
    by_name = CliRunner().invoke(cli, ["metrics", "--explain", "late", "--engine", "pipeline"])
    assert by_name.exit_code == 0, by_name.output
    assert by_name.output.splitlines()[-4:] == [
        "static:              - (and priorities, goals and the graph, which every policy knows)",
        "dynamic:             cost, head_age, rate",
        "dependent:           head_age",
        "execution-intrinsic: cost",
    ]
    by_class = CliRunner().invoke(cli, ["metrics", "--explain", "added:Late", "--engine", "pipeline"])
    assert by_class.output == by_name.output


def test_an_assignment_of_another_package_is_found_by_name(install: Install) -> None:
    install("x", assigners="last = added:last\nsticky = added:Sticky\nlocked = added:Locked\nodd = added:number")
    snapshot = Snapshot(Topology.of([Query("q", (Operator("a"), Operator("b")))]), 0.0, {})
    assert {"last", "sticky"} < set(assignment.names())
    for name in ("last", "sticky"):
        chosen = assignment.assigner_of(name)
        assert (chosen.name, list(chosen.function(snapshot, 3))) == (name, [2, 2])
    for name, says in {
        "locked": "can't be made: RuntimeError: no key",
        "odd": "'added:number' can't be called",
    }.items():
        with pytest.raises(ConfigError, match=says):
            assignment.assigner_of(name)


def test_what_is_there_is_described_built_in_first(install: Install) -> None:
    assert [kind.name for kind in engines.describe()] == ["simulator", "spark"]
    assert enforcers.names() == ()
    install("x", engines="still = added:still", enforcers="colour = added:Colour")
    assert [kind.name for kind in engines.describe()] == ["simulator", "spark", "still"]
    assert enforcers.names() == ("colour",)


def test_a_name_that_is_not_there_is_told_with_those_that_are_near() -> None:
    with pytest.raises(ConfigError, match=r"there is no engine 'simulater' \(did you mean simulator\?\)"):
        engines.get("simulater")
    with pytest.raises(ConfigError, match=r"there is no engine 'flink' \(use one of simulator, spark\)"):
        engines.get("flink")
    with pytest.raises(ConfigError, match=r"there is no knob 'nice' among the plug-ins \(no package adds one"):
        enforcers.get("nice")
    assert plugins.suggestion("x", []) == "there is none"


def test_a_broken_plug_in_is_named_with_its_package_and_harms_nobody_else(install: Install) -> None:
    install(
        "bad-x",
        engines="lost = no_such_module:engine\nodd = added:number\nmisnamed = added:still",
        enforcers="lost = added:nothing\nodd = added:number\nlocked = added:locked\nmisnamed = added:Colour",
    )
    assert engines.get("simulator").name == "simulator"
    for name, says in {
        "lost": "can't be imported: ModuleNotFoundError: No module named 'no_such_module'",
        "odd": "'added:number' is not an EngineKind with the name 'odd'",
        "misnamed": "'added:still' is not an EngineKind with the name 'misnamed'",
    }.items():
        with pytest.raises(ConfigError, match=f"^plug-in '{name}' of package 'bad-x': {says}"):
            engines.get(name)
    for name, says in {
        "lost": "can't be imported: AttributeError",
        "odd": "'added:number' can't be called",
        "locked": "can't be made: RuntimeError: no key",
        "misnamed": "'added:Colour' did not make a Knob with the name 'misnamed'",
    }.items():
        with pytest.raises(ConfigError, match=f"^plug-in '{name}' of package 'bad-x': {says}"):
            enforcers.get(name).make()


def test_a_name_that_is_taken_is_refused_without_importing_anybody(install: Install) -> None:
    install("thief", engines="simulator = no_such_module:engine")
    with pytest.raises(ConfigError, match="plug-in 'simulator' of package 'thief': its name is already that of an eng"):
        engines.get("simulator")


def test_two_packages_can_not_add_one_name(install: Install) -> None:
    install("one", enforcers="colour = added:Colour")
    install("two", enforcers="colour = added:PerGroup")
    with pytest.raises(ConfigError, match=r"its name is already that of plug-in 'colour' of package '(one|two)'"):
        enforcers.names()


@pytest.mark.parametrize("what", ["treadle.engines.registry", "treadle.attachment"])
def test_looking_for_engines_and_attaching_imports_neither_numba_nor_spark(what: str) -> None:
    code = f"import sys, {what}; print(sorted({{'numba', 'pyspark'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"


# ---------------------------------------------------------------- a knob of a plug-in in the loop


class Threads:
    """An engine with two threads, of the kernel or not, and no knobs."""

    name = "threads"
    offers = frozenset({"queue"})

    def __init__(self, pid: int) -> None:
        self.threads = (ThreadRef(1, pid), ThreadRef(2, pid))
        self.time = 0.0

    def topology(self) -> Topology:
        queries = tuple(Query(name, (Operator("a"),)) for name in "pq")
        of = zip(queries, self.threads, strict=True)
        return Topology(queries, tuple(Instance(q.name, ("a",), threads=(thread,)) for q, thread in of))

    def sample(self, wanted: frozenset[str]) -> Sample:
        self.time += 1.0
        return Sample(self.time, {"queue": np.array([1.0, 9.0])})

    def knobs(self) -> Mapping[str, Knob]:
        return {}


def _painted(*threads: ThreadRef) -> dict[ThreadRef, Value]:
    """The threads that the plug-in knows, all grey."""
    import added  # type: ignore[import-not-found]

    added.VALUES.update(dict.fromkeys(threads or (ThreadRef(1, 7), ThreadRef(2, 7)), "grey"))
    values: dict[ThreadRef, Value] = added.VALUES
    return values


def test_the_loop_turns_a_plug_ins_knob_on_kernel_threads_and_puts_it_back(install: Install) -> None:
    install("x", enforcers="colour = added:Colour")
    engine = Threads(pid=7)
    painted = _painted(*engine.threads)
    for thread in painted:
        painted[thread] = 0.5
    binding = Binding(policies.create("queue-size"), "colour", 1.0, scale=SCALES["unit"])
    with Loop([engine], [binding]) as loop:
        loop.round()
        assert list(painted.values()) == [0.0, 1.0]
        assert [decision.knob for decision in loop.decisions] == ["colour", "colour"]
    assert list(painted.values()) == [0.5, 0.5]


@pytest.mark.parametrize(("knob", "pid"), [("colour", 0), ("per-group", 7), ("nothing", 7)])
def test_the_loop_refuses_a_knob_for_simulated_threads_or_groups_or_that_nobody_adds(
    install: Install, knob: str, pid: int
) -> None:
    install("x", enforcers="colour = added:Colour\nper-group = added:PerGroup")
    binding = Binding(policies.create("queue-size"), knob, 1.0, scale=SCALES["unit"])
    with pytest.raises(EngineError, match=f"no engine has a knob '{knob}'"):
        Loop([Threads(pid)], [binding])


def test_a_plug_ins_knob_is_kept_from_threads_that_turn_out_to_be_simulated(install: Install) -> None:
    class Late(Threads):
        """Can't be reached when the loop starts."""

        looks = 0

        def topology(self) -> Topology:
            self.looks += 1
            if self.looks == 1:
                raise EngineError("not there yet")
            return super().topology()

    install("x", enforcers="colour = added:Colour")
    engine = Late(pid=0)
    painted = _painted(*engine.threads)
    binding = Binding(policies.create("queue-size"), "colour", 1.0, scale=SCALES["unit"])
    with Loop([engine], [binding]) as loop:
        loop.round()
        assert "is not a thread of the operating system" in str(loop.stats.troubles)
    assert set(painted.values()) == {"grey"}


# ---------------------------------------------------------------- the page for authors

PAGE = (Path(__file__).parents[1] / "docs" / "plug-ins.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def example(install: Install) -> dict[str, Callable[[], None]]:
    """The page's package, installed as the page says; returns its tests by name."""
    policy, assign, engine, knob, tests = _blocks("python")
    (project,) = (tomllib.loads(block)["project"] for block in _blocks("toml"))
    groups = {
        group.removeprefix("treadle."): "\n".join(
            f"{name} = {value.replace('my_package', 'added')}" for name, value in points.items()
        )
        for group, points in project["entry-points"].items()
    }
    install("example", module="\n".join([policy, assign, engine, knob]), **groups)
    names: dict[str, Callable[[], None]] = {}
    exec(tests.replace("my_package", "added"), names)
    return names


def test_the_examples_on_the_page_are_found_by_name(example: object) -> None:
    assert "freshest" in [described.name for described in policies.describe()]
    assert assignment.assigner_of("by-query").name == "by-query"
    assert engines.get("threads").offers == {"cpu_time"}
    assert enforcers.get("timer-slack").make().per == "thread"


@pytest.mark.parametrize("name", ["test_the_policy", "test_the_engine", "test_the_knob"])
def test_the_examples_on_the_page_pass_the_tests_on_the_page(example: dict[str, Callable[[], None]], name: str) -> None:
    if name == "test_the_knob" and not Path("/proc/self/timerslack_ns").exists():
        pytest.skip("this kernel has no timer slack in /proc")
    example[name]()


def test_the_command_on_the_page_runs_the_policy_of_the_page(example: object) -> None:
    (command,) = re.findall(r"`treadle (simulate .*?)`", PAGE)
    result = CliRunner().invoke(cli, [*command.split(), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    assert list(json.loads(result.output)) == ["freshest", "fifo"]

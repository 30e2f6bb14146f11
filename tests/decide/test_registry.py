from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from treadle.decide.adaptive import Adaptive
from treadle.decide.policies import Chain, Fcfs, HighestRate, MultiClass, QueueSize, RoundRobin, UserPriority, Weighted
from treadle.decide.registry import create, describe
from treadle.errors import ConfigError
from treadle.model import Operator, Query, Topology
from treadle.values import Snapshot

Install = Callable[..., None]
ALIASES = {"qs": "queue-size", "hr": "highest-rate", "os": "none", "edf": "min-latency", "hnr": "normalized-rate"}


def snapshot(**found: list[float]) -> Snapshot:
    queries = [Query("q", (Operator("a"), Operator("b", ("a",))), priority=1.0), Query("p", (Operator("a"),))]
    return Snapshot(
        Topology.of(queries), 0.0, {metric: np.array(values, dtype=np.float64) for metric, values in found.items()}
    )


# ---------------------------------------------------------------- from text


@pytest.mark.parametrize("name", [d.name for d in describe() if d.name != "weighted"])
def test_every_policy_is_made_by_its_name(name: str) -> None:
    assert create(name).name == name


@pytest.mark.parametrize(
    ("alias", "name"), [*ALIASES.items(), ("lachesis-rt", "congestion-aware"), (" HR ", "highest-rate")]
)
def test_an_alias_is_as_good_as_the_name(alias: str, name: str) -> None:
    assert create(alias).name == name


def test_no_name_and_no_alias_is_there_twice() -> None:
    names = [name for d in describe() for name in (d.name, *d.aliases)]
    assert len(set(names)) == len(names)


def test_a_mix_is_made_with_its_weights() -> None:
    made = create("weighted:qs=0.75,hr=0.25")
    by_hand = Weighted([(QueueSize(), 0.75), (HighestRate(), 0.25)])
    seen = snapshot(queue=[1, 2, 3], global_rate=[9, 3, 1])
    assert made.decide(seen).priority.tolist() == by_hand.decide(seen).priority.tolist()


def test_classes_are_made_with_their_policies() -> None:
    made = create("multi-class:high=chain,low=qs,7=fcfs")
    assert isinstance(made, MultiClass)
    assert made.needs == ("cost", "selectivity", "queue", "head_age")


def test_a_policy_with_options_nests_in_parentheses() -> None:
    made = create("multi-class:high=(weighted:qs=1,(multi-class:high=rr)=2),low=(rr:step=2)")
    assert made.needs == ("queue", "global_rate")
    assert made.state() == {"high": {"members": [{}, {"high": {"turn": 0}, "low": {}}]}, "low": {"turn": 0}}


def test_priorities_of_operators_are_read_from_the_options() -> None:
    made = create("user-priority:q.a=5,b=-2")
    assert isinstance(made, UserPriority)
    assert made.decide(snapshot()).scalar.tolist() == [5, -2, 0]


def test_the_generator_that_is_passed_in_is_the_one_that_draws() -> None:
    drawn = create("random", np.random.default_rng(5)).decide(snapshot()).scalar
    assert drawn.tolist() == np.random.default_rng(5).random(3).tolist()
    assert create("random").decide(snapshot()).scalar.tolist() == create("random").decide(snapshot()).scalar.tolist()


def test_the_adaptive_policy_is_made_with_candidates_learner_and_objectives() -> None:
    made = create(
        "adaptive:learner=(thompson:discount=0.9),candidates=fifo+mtiq+(weighted:qs=1,hr=2),"
        "objective=min latency 3+max output_rate 1,delay=2,warm_up=0,inherit=no"
    )
    assert isinstance(made, Adaptive)
    assert made.candidates == ("fifo", "mtiq", "weighted:qs=1,hr=2")
    assert [str(objective) for objective in made.objectives] == ["min latency 0.75", "max output_rate 0.25"]
    assert (made.learner.name, made.delay, made.warm_up) == ("thompson", 2.0, 0)


def test_the_adaptive_policy_has_the_four_of_amos_by_default() -> None:
    made = create("adaptive:learner=ucb")
    assert isinstance(made, Adaptive)
    assert made.candidates == ("rr", "fifo", "mtiq", "chain")
    assert set(made.needs) == {"queue", "head_age", "cost", "selectivity"}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "'' is not the name of a policy"),
        ("qs=1", "'qs=1' is not the name of a policy"),
        ("hihgest-rate", r"there is no policy 'hihgest-rate' \(did you mean highest-rate"),
        ("zzzzzz", r"there is no policy 'zzzzzz' \(use one of queue-size, qs, highest-rate"),
        ("qs:", "'' is not an option"),
        ("qs:x", "'x' is not an option"),
        ("qs:x=1", r"policy 'qs:x=1': there is no option 'x' \(leave it out"),
        ("rr:stpe=2", r"there is no option 'stpe' \(did you mean step\?\)"),
        ("rr:step=two", "step is 'two'"),
        ("rr:step=1.5", r"step is 1.5 \(give a whole number\)"),
        ("rr:step=", "'step=' is not an option"),
        ("rr:step=1,step=2", "option 'step' is given twice"),
        ("weighted", "has no members"),
        ("weighted:qs=nan", "qs is 'nan'"),
        ("weighted:qs=0", "the weight of 'queue-size' is 0"),
        ("weighted:qx=1", r"policy 'qx': there is no policy 'qx' \(did you mean qs"),
        ("weighted:(qs=1", "the parentheses are unbalanced"),
        ("weighted:qs)=(1", "the parentheses are unbalanced"),
        ("multi-class:hihg=fcfs", "'hihg' is not a class"),
        ("multi-class:low=(rr:step=0)", "step is 0"),
        ("adaptive:learner=guess", "there is no learner 'guess'"),
        ("adaptive:candidates=fifo+lifo", "there is no policy 'lifo'"),
        ("adaptive:objective=fast", "'fast' is not an objective"),
        ("adaptive:inherit=maybe", "inherit is 'maybe'"),
    ],
)
def test_a_slip_of_the_pen_is_named_with_its_remedy(spec: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        create(spec)


# ---------------------------------------------------------------- what there is


def test_descriptions_say_what_a_policy_is_good_for() -> None:
    found = {d.name: d for d in describe()}
    assert found["fcfs"] == (
        "fcfs",
        (),
        "maximum latency",
        ("head_age",),
        "Lachesis 5.1; Haren 7.2",
        "Serves the oldest head first; an empty queue comes last, with age 0.",
    )
    assert found["multi-class"].needs == MultiClass().needs == (*Fcfs.needs, *HighestRate.needs)
    assert found["chain"].needs == Chain.needs
    assert found["rr"].needs == RoundRobin.needs == ()
    for description in found.values():
        assert description.help.endswith(".")
        assert description.paper
        assert description.optimises


# ---------------------------------------------------------------- plug-ins

MODULE = """
from treadle.decide.policy import Policy
from treadle.values import Schedule

class Longest(Policy):
    '''Runs what has the longest name.'''
    name = "longest-name"
    aliases = ("ln",)
    optimises = "nothing"
    def __init__(self, factor=1.0):
        self.factor = factor
    @classmethod
    def from_options(cls, options):
        return cls(options.number("factor", 1.0))
    def decide(self, snapshot):
        return Schedule(self.factor * snapshot.topology.priority)

class Plain(Policy):
    name = "plain"
    def decide(self, snapshot):
        return Schedule(snapshot.topology.priority)

class Greedy(Plain):
    name = "greedy-alias"
    aliases = ("qs",)

class Fragile(Plain):
    name = "fragile"
    def __init__(self):
        raise RuntimeError("no licence")

number = 42
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package with entry points on the path, as pip would."""

    def make(package: str, **points: str) -> None:
        (tmp_path / "plug_in_of_the_tests.py").write_text(MODULE)
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [
            f"{name.replace('_', '-')} = {value.replace('MODULE', 'plug_in_of_the_tests')}"
            for name, value in points.items()
        ]
        (folder / "entry_points.txt").write_text("\n".join(["[treadle.policies]", *lines, ""]))
        monkeypatch.syspath_prepend(str(tmp_path))

    return make


def test_a_plug_in_is_made_by_name_and_alias_with_its_options_and_described(install: Install) -> None:
    install("longest", longest_name="MODULE:Longest", plain="MODULE:Plain")
    assert create("longest-name:factor=3").decide(snapshot()).scalar.tolist() == [3, 3, 0]
    assert create("ln").name == "longest-name"
    assert create("weighted:plain=1,ln=1").name == "weighted"
    assert ("longest-name", ("ln",), "nothing", (), "", "Runs what has the longest name.") in describe()
    with pytest.raises(ConfigError, match="there is no option 'x'"):
        create("plain:x=1")


def test_a_broken_plug_in_is_named_and_harms_nobody_else(install: Install) -> None:
    install("broken-package", broken="no_such_module:Policy")
    assert create("qs").name == "queue-size"
    says = "plug-in 'broken' of package 'broken-package': can't be imported: ModuleNotFoundError"
    with pytest.raises(ConfigError, match=says):
        create("broken")
    with pytest.raises(ConfigError, match=says):
        describe()


@pytest.mark.parametrize("value", ["MODULE:number", "MODULE:Plain"])
def test_a_plug_in_that_is_no_policy_of_its_name_is_refused(install: Install, value: str) -> None:
    install("odd", odd=value)
    with pytest.raises(ConfigError, match=r"plug-in 'odd' of package 'odd': .* is not a Policy with the name 'odd'"):
        create("odd")


def test_a_plug_in_that_can_not_be_made_is_named(install: Install) -> None:
    install("weak", fragile="MODULE:Fragile")
    with pytest.raises(
        ConfigError, match="plug-in 'fragile' of package 'weak': can't be made: RuntimeError: no licence"
    ):
        create("fragile")


def test_a_plug_in_can_not_take_the_name_of_a_built_in_policy(install: Install) -> None:
    install("thief", chain="MODULE:Plain")
    with pytest.raises(
        ConfigError, match="plug-in 'chain' of package 'thief': its name is already that of a policy of"
    ):
        create("fcfs")


def test_two_plug_ins_can_not_have_one_name(install: Install) -> None:
    install("one", plain="MODULE:Plain")
    install("two", plain="MODULE:Longest")
    with pytest.raises(ConfigError, match=r"its name is already that of plug-in 'plain' of package '(one|two)'"):
        create("fcfs")


def test_a_plug_in_can_not_take_an_alias_either(install: Install) -> None:
    install("thief", greedy_alias="MODULE:Greedy")
    with pytest.raises(ConfigError, match="plug-in 'greedy-alias' of package 'thief': 'qs' is already the name"):
        describe()


def test_what_is_no_text_is_refused_in_one_line() -> None:
    for spec in (Fcfs, Fcfs(), 3, None):
        with pytest.raises(ConfigError, match=r"policy can't be .*or a Policy object"):
            create(spec)  # type: ignore[arg-type]

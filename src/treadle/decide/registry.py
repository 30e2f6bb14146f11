"""Policies by name: the built-in ones, and those that other packages add as entry points of `treadle.policies`.

An entry point refers to a subclass of `Policy` and has the same name. A policy with options has a classmethod
`from_options(options)`, one without is created with no arguments. For `treadle policies` it may have the class
attributes `aliases`, `optimises` and `paper`; its help is the first line of its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import NamedTuple

import numpy as np

from treadle import plugins
from treadle.decide import adaptive, policies
from treadle.decide.policies.shared.spec import Options, bare, parse, where
from treadle.decide.policy import Policy
from treadle.errors import ConfigError, TreadleError

GROUP = "treadle.policies"

BUILT_IN: tuple[type[Policy], ...] = (
    policies.QueueSize,
    policies.HighestRate,
    policies.Fcfs,
    policies.Chain,
    policies.MultiClass,
    policies.CongestionAware,
    policies.DownstreamFirst,
    policies.MinLatency,
    policies.NormalizedRate,
    policies.Fifo,
    policies.Mtiq,
    policies.RoundRobin,
    policies.UserPriority,
    policies.Weighted,
    policies.Random,
    policies.Nothing,
)


class Description(NamedTuple):
    """What users need to know to choose a policy."""

    name: str
    aliases: tuple[str, ...]
    optimises: str
    needs: tuple[str, ...]
    paper: str
    help: str


@dataclass(frozen=True)
class _Entry:
    description: Description
    build: Callable[[Options], Policy]


def create(spec: str, rng: np.random.Generator | None = None) -> Policy:
    """Create a policy from its spec, as `queue-size`, `weighted:qs=0.7,hr=0.3` or `multi-class:low=(rr:step=2)`."""
    if not isinstance(spec, str):
        raise ConfigError(f"policy can't be {spec!r}", remedy="give a policy's name, as 'fcfs', or a Policy object")
    generator = np.random.default_rng(0) if rng is None else rng
    plug_ins = _plug_ins()

    def make(text: str) -> Policy:
        name, values = parse(adaptive.expanded(text))
        options = Options(text, values, generator, make)
        policy = _entry(name, text, plug_ins).build(options)
        options.refuse_the_rest()
        return policy

    return make(spec)


def candidates(text: str, known: Mapping[str, Policy]) -> dict[str, Policy]:
    """Create the candidates of an adaptive policy, by label; those in `known` are not created again."""
    return adaptive.labelled(text, create, known)


def create_or_import(spec: str) -> Policy:
    """Create a policy from its spec, or from its class if the spec is `module:Class`."""
    module, _, name = spec.partition(":")
    if not name.isidentifier() or module in _built_in() or module in _plug_ins():
        return create(spec)
    found = plugins.imported(spec)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError("is not a policy", where=spec, remedy="name a subclass of treadle.decide.policy.Policy")
    return _entry_of(found, spec).build(Options(spec, {}, np.random.default_rng(0), create))


def describe() -> list[Description]:
    """Return the descriptions of all policies, built-in ones first."""
    entries = {entry.description.name: entry for entry in _everything(_plug_ins()).values()}
    return [entry.description for entry in entries.values()]


def _entry(name: str, spec: str, plug_ins: dict[str, EntryPoint]) -> _Entry:
    """Look up a name; a plug-in is imported only if it has this name, or may have it as an alias."""
    table = _built_in()
    if name in table:
        return table[name]
    if name in plug_ins:
        return _load(plug_ins[name])
    table = _everything(plug_ins)
    if name in table:
        return table[name]
    raise ConfigError(f"there is no policy '{name}'", where=where(spec), remedy=plugins.suggestion(name, table))


def _built_in() -> dict[str, _Entry]:
    """Return the built-in policies by name and alias."""
    entries = [*(_entry_of(policy) for policy in BUILT_IN), _Entry(_ADAPTIVE, _adaptive)]
    return {name: entry for entry in entries for name in _names(entry)}


def _everything(plug_ins: dict[str, EntryPoint]) -> dict[str, _Entry]:
    """Return built-in policies and plug-ins by name and alias; an alias that is in use already is an error."""
    table = _built_in()
    for point in plug_ins.values():
        entry = _load(point)
        for name in _names(entry):
            if name in table or (name in plug_ins and name != point.name):
                raise plugins.taken(point, f"'{name}' is already the name of another policy")
            table[name] = entry
    return table


def _names(entry: _Entry) -> tuple[str, ...]:
    return (entry.description.name, *entry.description.aliases)


def _plug_ins() -> dict[str, EntryPoint]:
    return plugins.find(GROUP, "a policy", _built_in())


def _load(point: EntryPoint) -> _Entry:
    loaded, plug_in = plugins.load(point), plugins.called(point)
    if not (isinstance(loaded, type) and issubclass(loaded, Policy)) or getattr(loaded, "name", "") != point.name:
        raise ConfigError(
            f"'{point.value}' is not a Policy with the name '{point.name}'",
            where=plug_in,
            remedy="let the entry point name a subclass of treadle.decide.policy.Policy",
        )
    return _entry_of(loaded, plug_in)


def _entry_of(policy: type[Policy], plug_in: str = "") -> _Entry:
    description = Description(
        policy.name,
        tuple(getattr(policy, "aliases", ())),
        str(getattr(policy, "optimises", "")),
        tuple(policy.needs),
        str(getattr(policy, "paper", "")),
        (policy.__doc__ or "").strip().partition("\n")[0],
    )

    def build(options: Options) -> Policy:
        try:
            made = getattr(policy, "from_options", lambda _: policy())(options)
        except TreadleError:
            raise
        except Exception as error:
            if not plug_in:
                raise
            raise plugins.failed(plug_in, "can't be made", error) from error
        assert isinstance(made, Policy)
        return made

    return _Entry(description, build)


_ADAPTIVE = Description(
    adaptive.Adaptive.name,
    ("amos", adaptive.PAPER),
    "any objectives",
    (),
    "AMoS 3",
    "Learns which of its candidates serves the objectives best and puts that one in charge.",
)


def _adaptive(options: Options) -> Policy:
    """Create an adaptive policy; candidates and objectives are joined by +, as "min latency 0.7+max throughput 0.3"."""
    learner, parameters = parse(bare(options.text("learner", "ucb")))
    tuned = Options(learner, parameters, options.rng, options.create)
    made = adaptive.create(
        adaptive.labelled(options.text("candidates", "rr+fifo+mtiq+chain"), options.create),
        adaptive.from_text(bare(options.text("objective", "min latency"))),
        adaptive.learner(learner, **{key: tuned.number(key) for key in tuned.unread()}),
        options.rng,
        delay=options.number("delay", 2.0),
        warm_up=options.integer("warm_up", 1),
        settle=options.number("settle", 0.3),
        decay=options.number("decay", 0.3),
        discount=options.number("discount", 1.0),
        inherit=options.flag("inherit", True),
        memory=options.integer("memory", 256),
        learned=bare(options.text("learned", "")) or None,
    )
    made.spec = options.spec
    return made

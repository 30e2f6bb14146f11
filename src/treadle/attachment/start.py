"""Attaches to applications: checks the request, finds the applications, and only then starts anything.

Lachesis section 4; several engines in one decision as in its section 6.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle import durations
from treadle.attachment import checks, plan, targets
from treadle.attachment.attached_applications import Wanted
from treadle.attachment.control import Attachment
from treadle.attachment.knobs import Knobs
from treadle.attachment.live_settings import LEAST_QUOTA
from treadle.attachment.micro_batches.batch_turns import Slots
from treadle.attachment.micro_batches.batch_turns import checked as checked_slots
from treadle.attachment.newcomers import Newcomers
from treadle.attachment.plan import LEAST_PERIOD, loads_agent
from treadle.attachment.priorities import checked, with_default
from treadle.attachment.shown.published import ask
from treadle.attachment.targets import Target
from treadle.decide.policy import Policy
from treadle.durations import Duration
from treadle.errors import ConfigError
from treadle.linux import users
from treadle.linux.users import User

if TYPE_CHECKING:  # promises need compiled code, which takes as long to load as all the rest
    from treadle.attachment.quality.promises import Given
    from treadle.decide.quality import Promise


def attach(
    target: Target | Sequence[Target],
    *,
    policy: str | Policy | None = None,
    enforce: str | None = None,
    period: Duration = "50ms",
    priorities: Mapping[str, float] | None = None,
    strict: bool = False,
    latency_goals: Mapping[str, Duration] | None = None,
    quotas: Mapping[str, float] | None = None,
    queries: Sequence[str] = ("*",),
    rules: Sequence[Mapping[str, Any]] = (),
    user: User | None = None,
    qod: Given | None = None,
    dry_run: bool = False,
    agent: bool | None = None,
    slots: Slots = None,
    background: bool = True,
) -> Attachment:
    """Schedule the threads of one or several Spark applications that run on this host.

    A target is a process id, an application's name, the address of its UI, or a SparkSession of this process; one
    policy schedules all of them in one loop. A name such as `shop-*` is a pattern: it means all applications that
    match, also those that start later. Names and patterns mean applications of one `user` (a name or a uid), by default
    of the calling user (under sudo the one who called sudo). `enforce` is nice, cgroup, rt, slice or quota, or several
    joined by `+`. `priorities`, `latency_goals` and `quotas` (in CPUs) are by patterns of query names, of which the
    first match counts; `queries` are the patterns of the queries that are scheduled at all. Priorities are shares of
    the CPU, and a query that no pattern matches has 1; with `strict` only their order counts, and the lowest gets
    hardly anything while the highest needs the CPU. `rules` give sets of queries a policy, a priority and a period of
    their own, as in `[{"queries": "alerts-*", "policy": "fcfs", "priority": 10}]`; the first match counts, and by
    default each set then is a CPU group in which its policy decides by nice (`cgroup+nice`). With `qod`, micro-batches
    drop rows when the CPU is short, but never more than `qod` allows: it is a mapping of patterns to `priority` and
    `min_accuracy`, or the path of a TOML file with such a table. By default Treadle's agent is loaded for as long as
    the attachment lasts, and a Jolokia agent, which stays, only if the policy or the watchdog needs it; a dry run loads
    neither. True for `agent` loads both, False loads and reads none. With `slots`, only so many micro-batches of an
    application run at once ("auto": one for each of its cores), and a batch that waits for its turn reads all rows that
    arrive meanwhile. Without `background`, call `run` on the result.
    """
    wanted, goals = checked("priorities", priorities or {}, 0.0), _seconds(latency_goals or {})
    checked("quotas", quotas or {}, LEAST_QUOTA)
    length = durations.seconds(period, what="the period", where="attach", least=LEAST_PERIOD)
    turns = checked_slots(slots)
    if turns is not None and agent is False:
        remedy = "leave out --no-agent (agent=False), or --slots (slots)"
        raise ConfigError("only an agent can hold batches back", where="slots", remedy=remedy)
    promised = {} if qod is None else _promised(qod, agent)
    policy = "min-latency" if policy is None and goals else policy
    chosen = plan.make(policy, enforce, length, wanted, quotas or {}, tuple(queries), strict=strict, rules=rules)
    if dry_run and chosen.learner is not None:
        chosen.learner.keep_no_file()
    own, owner = loads_agent(agent, dry_run=dry_run), None if user is None else users.number(user)
    chosen.check(Knobs(chosen).version, beans=agent is not False, agent=own)
    applications = targets.find(target, agent=own, user=owner)
    if not dry_run:
        checks.check(chosen, applications.values())
    asked = Wanted(chosen, with_default(wanted), goals, agent, dry_run, turns)
    attachment = Attachment(asked, applications, promised, later=Newcomers(targets.patterns(target), owner))
    if background:
        attachment.start()
    return attachment


def look_on(
    target: Target | Sequence[Target], *, agent: bool = False, user: User | None = None
) -> Callable[[], dict[str, Any] | None] | None:
    """Return a function that reads the status of the attachment that schedules these applications.

    None: no attachment schedules them. The function itself returns None after the attachment has ended.
    """
    owner = None if user is None else users.number(user)
    found = list(targets.find(target, agent=agent, user=owner).values())
    return (lambda: ask(found)) if ask(found) is not None else None


def watch(
    target: Target | Sequence[Target],
    *,
    period: Duration = "200ms",
    agent: bool | None = None,
    user: User | None = None,
) -> Attachment:
    """Observe applications without changing how they are scheduled: call `run` or `start` on the result."""
    return attach(target, policy="none", period=period, dry_run=True, agent=agent, user=user, background=False)


def _promised(qod: Given, agent: bool | None) -> dict[str, Promise]:
    from treadle.attachment.quality import promises

    promised = promises.read(qod)
    if promised and agent is False:
        remedy = "leave out --no-agent (agent=False), or --qod (qod)"
        raise ConfigError("only an agent can drop rows", where="qod", remedy=remedy)
    return promised


def _seconds(goals: Mapping[str, Duration]) -> dict[str, float]:
    return {
        pattern: durations.seconds(goal, what=f"the goal of '{pattern}'", where="latency_goals")
        for pattern, goal in goals.items()
    }

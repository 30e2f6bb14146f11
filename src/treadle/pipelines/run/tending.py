"""What the control thread of a run does: polls channels, ranks hops, offers them to the gate, restarts failed ones.

Each part is attempted by itself, so that a channel that can't be read or a hop that can't be polled stops no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from treadle.loop import Loop
from treadle.loop.trouble import Attempts
from treadle.pipelines.channels.channel import Source
from treadle.pipelines.gating.parked_hops import Turns
from treadle.pipelines.hops.hop import Hop, State
from treadle.pipelines.nodes.node import Kind

if TYPE_CHECKING:
    from treadle.pipelines.run.run import Run

TICK = 0.02
"""Seconds between polls of what comes from outside: feeds, stateful hops, restarts."""
SLOW_TICK = 1.0


class Tending:
    """Of one run. `restart` starts a hop again."""

    def __init__(self, run: Run, turns: Turns, attempt: Attempts, restart: Callable[[Hop], None]) -> None:
        self._run = run
        self._turns = turns
        self._attempt = attempt
        self._restart = restart

    def work(self, loop: Loop, stopping: Event) -> None:
        """Until the run stops."""
        slow = time.monotonic()
        with loop:
            while not stopping.wait(TICK):
                self._poll_feeds()
                self._attempt("holding back small batches", self._turns.look)
                if self._run.options.enforce != "none":
                    self._attempt("ranking the hops", loop.round)
                if time.monotonic() >= slow:
                    slow = time.monotonic() + SLOW_TICK
                    self._tend()
                if self._run.promises is not None:
                    self._attempt("keeping promises", partial(self._run.promises.step, time.monotonic()))

    def _poll_feeds(self) -> None:
        for name, channel in self._run.channels.items():
            if self._run.nodes[name].kind is Kind.FEED and channel.asks:
                self._attempt(f"polling channel '{name}'", partial(self._poll, channel))

    def _poll(self, channel: Source) -> None:
        if channel.refresh():
            self._turns.consider_all()

    def _tend(self) -> None:
        self._attempt("steering", self._run.steering.step)
        for name, channel in self._run.channels.items():
            self._attempt(f"polling channel '{name}'", channel.refresh)
            self._attempt(f"collecting channel '{name}'", channel.collect)
        self._attempt("offering hops to the gate", partial(self._turns.consider_all, thorough=True))
        for hop in self._run.hops.values():
            self._attempt(f"tending hop '{hop.name}'", partial(self._tend_hop, hop))

    def _tend_hop(self, hop: Hop) -> None:
        if self._run.realtime is not None and hop.state is not State.RESTARTING:
            self._run.realtime.note(hop)
        if hop.state is State.RESTARTING and time.monotonic() >= hop.retry_at:
            if all(cluster.reachable for cluster in hop.clusters):
                self._restart(hop)
        elif hop.stateful and hop.parked and hop.state is State.IDLE:
            self._turns.tick(hop)

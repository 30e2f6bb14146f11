"""The work of a run's control thread: poll channels, run the control loop, offer hops to the gate, restart failed hops.

Errors are caught for each channel and each hop alone, so that one which fails does not stop the others.
"""

from __future__ import annotations

import time
from functools import partial

from treadle.loop import Loop
from treadle.pipelines.channels.channel import Source
from treadle.pipelines.hops.hop import Hop, State
from treadle.pipelines.nodes.node import Kind
from treadle.pipelines.run.failures import Failures
from treadle.pipelines.run.hop_starter import HopStarter
from treadle.pipelines.run.parts import TICK, Parts

SLOW_TICK = 1.0


class ControlThread:
    """The periodic work for one started run."""

    def __init__(self, parts: Parts, starter: HopStarter, failures: Failures | None = None) -> None:
        self._parts = parts
        self._failures = failures
        self._starter = starter
        self._parked_hops = starter.parked_hops
        self._attempt = parts.attempt

    def work(self, loop: Loop) -> None:
        """Repeat the work until the run stops."""
        parts = self._parts
        slow = time.monotonic()
        with loop:
            while not parts.stopping.wait(TICK):
                self._poll_feeds()
                self._attempt("holding back small batches", self._parked_hops.look)
                if parts.options.enforce == "none":
                    self._attempt("keeping promises", loop.keep_promises)
                else:
                    self._attempt("ranking the hops", loop.round)
                if time.monotonic() >= slow:
                    slow = time.monotonic() + SLOW_TICK
                    self._maintain()

    def _poll_feeds(self) -> None:
        for name, channel in list(self._parts.channel_set.sources.items()):
            node = self._parts.nodes.get(name)  # a change of the pipeline may have removed it
            if node is not None and node.kind is Kind.FEED and channel.asks:
                self._attempt(f"polling channel '{name}'", partial(self._poll, channel))

    def _poll(self, channel: Source) -> None:
        if channel.refresh():
            self._parked_hops.consider_all()

    def _maintain(self) -> None:
        self._attempt("steering", self._parts.steering.step)
        for name, channel in list(self._parts.channel_set.sources.items()):
            self._attempt(f"polling channel '{name}'", channel.refresh)
            self._attempt(f"collecting channel '{name}'", channel.collect)
        self._attempt("offering hops to the gate", partial(self._parked_hops.consider_all, thorough=True))
        if self._failures is not None:
            self._attempt("ending what only failed sinks need", self._failures.step)
        for hop in list(self._parts.hops.values()):
            self._attempt(f"tending hop '{hop.name}'", partial(self._maintain_hop, hop))

    def _maintain_hop(self, hop: Hop) -> None:
        realtime = self._parts.realtime
        if realtime is not None and hop.state is not State.RESTARTING and not hop.ended:
            realtime.note(hop)
        if hop.state is State.RESTARTING and not hop.leaving and time.monotonic() >= hop.retry_at:
            if all(cluster.reachable for cluster in hop.clusters):
                self._starter.restart(hop)
        elif hop.stateful and hop.parked and hop.state is State.IDLE:
            self._parked_hops.tick(hop)

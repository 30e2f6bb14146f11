"""Ends the sinks that have failed for good, if their owner wants the others to go on, and what only they need.

The backlog of an ended hop is kept until a channel is full of it. Then the hop leaves the channel, so that it holds
back nobody: its rows may be removed once all other readers have read them. A hop that is tried again for ever leaves a
full channel too, and goes on with the first row that is left when it works again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from treadle.errors import ConfigError
from treadle.pipelines.channels.channel import Source
from treadle.pipelines.hops.hop import Hop, State
from treadle.pipelines.run.hop_starter import HopStarter
from treadle.pipelines.run.parts import Parts

log = logging.getLogger("treadle.pipelines")


def check(parts: Parts, *, promised: bool) -> None:
    """Refuse a sink that may end alone where rows may be dropped: its backlog would count as work to be done."""
    for sink in parts.definition.sinks:
        if promised and (sink.on_failure or parts.options.on_failure) == "continue":
            raise ConfigError(
                "on_failure can't be 'continue' where sinks have a min_accuracy",
                where=sink.where,
                remedy="use 'stop' or 'retry'",
            )


class Failures:
    """The ended sinks of a run. `follow` lets policies know which hops still run."""

    def __init__(self, parts: Parts, starter: HopStarter, follow: Callable[[], None]) -> None:
        self._parts = parts
        self._starter = starter
        self._follow = follow

    def step(self) -> None:
        """Do what is due, without waiting. The control thread calls this about once a second."""
        for hop in list(self._parts.hops.values()):
            if hop.ended or (hop.state is State.RESTARTING and hop.failures > self._parts.options.retries):
                self._leave_full_channels(hop)
        if not self._parts.changing.acquire(blocking=False):
            return  # the pipeline is being changed; the next step comes soon
        try:
            self._end_sinks()
            for hop in self._parts.needless():
                if not hop.ended:
                    self._end(hop)
        finally:
            self._parts.changing.release()

    def _end_sinks(self) -> None:
        parts = self._parts
        new = False
        for hop in list(parts.hops.values()):
            if hop.state is not State.FAILED or parts.on_failure(hop.name) != "continue":
                continue
            for sink in parts.sinks_of(hop.name):
                parts.failed[sink] = hop.error if sink == hop.name else f"it needs '{hop.name}': {hop.error}"
                log.error("sink '%s' has ended: %s", sink, parts.failed[sink], extra={"hop": sink})
                new = True
        if new and parts.live is None:
            parts.over.set()
        elif new:
            self._follow()

    def _end(self, hop: Hop) -> None:
        """Stop a hop that only ended sinks need, after its running batch."""
        hop.leaving = True
        if self._starter.at_rest(hop):
            self._starter.end(hop)
            log.info("hop '%s' has ended: only failed sinks need it", hop.name, extra={"hop": hop.name})

    def _leave_full_channels(self, hop: Hop) -> None:
        for channel in hop.inputs:
            rows = channel.backlog(hop.name).rows
            if rows >= channel.limit_rows and self._is_read_by_others(channel, hop):
                channel.leave(hop.name)
                hop.left = True
                log.warning(
                    "hop '%s' no longer holds back channel '%s': %d rows wait for it, which are removed from now on",
                    *(hop.name, channel.name, rows),
                    extra={"hop": hop.name, "rows": rows},
                )

    def _is_read_by_others(self, channel: Source, hop: Hop) -> bool:
        """Whether a hop that still runs reads the channel. Otherwise nothing is held back but the writer of a feed."""
        others = [each for each in self._parts.hops.values() if each is not hop and not each.ended]
        return any(channel in each.inputs for each in others)

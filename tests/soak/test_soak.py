"""Batches that change every second, queries that come and go, an executor that is killed, an application that comes.

Whatever happens, no thread keeps a priority that is not its own for more than two periods: what was true is told by a
witness in the JVMs, what threads had is asked of the kernel, and Treadle is asked nothing. It takes five minutes and
is for `make soak`, which sets TREADLE_SOAK; TREADLE_SOAK_SECONDS makes it shorter.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from applications import feeding
from soak import scene, witness
from soak.judge import judge
from soak.sampler import Sampler
from soak.scene import PERIOD, RULES, Attach, Scene, play
from support import named, until
from treadle.broker import Broker
from treadle.enforce import kernel

SECONDS = float(os.environ.get("TREADLE_SOAK_SECONDS", "300"))
SEED = int(os.environ.get("TREADLE_SEED", str(time.time_ns() % 1_000_000)))
MOST_WRONG = 0.05
"""Of the time of all threads: for machines that do much else, and whose rounds are late."""
WANTED = {query for query, (kind, _) in {**scene.LOCAL, **scene.CLUSTER}.items() if kind != "micro"}
"""Queries whose tasks last long enough to be seen."""
WORKS = {fact.what for fact in kernel.facts() if fact.works}


@pytest.mark.skipif("TREADLE_SOAK" not in os.environ, reason="five minutes: make soak")
@pytest.mark.skipif("nice" not in WORKS, reason="needs the right to set nice")
def test_no_thread_keeps_the_priority_of_another(
    broker: Broker, jolokia_jars: list[Path], own_journals: Path, tmp_path: Path
) -> None:
    chance, pattern, topic = random.Random(SEED), named("soak"), named("numbers")
    classes = witness.build(tmp_path / "classes")
    scenes: list[Scene] = []
    with ExitStack() as stack:
        stack.enter_context(feeding(broker, topic, scene.RATE))
        scenes.append(stack.enter_context(scene.local(tmp_path / "local", broker, topic, classes, f"{pattern}-local")))
        until(scenes[0].all_at_work)
        sampler = stack.enter_context(Sampler(lambda: [pid for each in list(scenes) for pid in each.processes]))
        attach = Attach(f"{pattern}-*", tmp_path / "attach.log")
        stack.callback(attach.kill)
        known = {RULES.queries[query] for query in WANTED & scene.LOCAL.keys()}
        until(lambda: attach.begun() and known <= sampler.values())  # before all are known, none has its own value
        since = time.monotonic()
        told = play(scenes, SECONDS / 3, chance)
        there = stack.enter_context(scene.cluster(tmp_path / "far", broker, topic, classes, f"{pattern}-far"))
        scenes.append(there)
        for _ in range(2):
            told += play(scenes, SECONDS / 6, chance)
            told.append(there.kill_executor(chance))
            told += play(scenes, SECONDS / 6, chance)
        end = time.monotonic()
        status = attach.end()
    verdict = judge(witness.read(*(each.folder for each in scenes)), sampler.found, RULES, since, end)
    found = {
        "seed": SEED,
        "seconds": round(end - since, 1),
        "period_ms": PERIOD * 1e3,
        "samples": sampler.samples,
        "longest_pause_ms": round(sampler.longest_pause * 1e3, 1),
        "done": len(told),
        "attach": status,
        **verdict.summary(PERIOD),
    }
    sys.stdout.write(f"{json.dumps(found)}\n")
    assert verdict.hands > 0
    assert verdict.wrong_share < MOST_WRONG
    assert not verdict.violations(PERIOD, stalled=False), found["worst"]
    assert verdict.assigned >= WANTED

"""The session's settings are defaults with a reason: what the user sets wins, and what is missing is told."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from treadle.enforce.gate.pools import allocation_file
from treadle.errors import ConfigError
from treadle.pipelines.spark import jvm
from treadle.pipelines.spark.session import folder_of, missing, session, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
PATH = "spark.driver.extraClassPath"


def test_every_setting_is_there_once_and_says_what_it_is_good_for() -> None:
    for fair in (False, True):
        found = settings(fair=fair)
        assert len({s.key for s in found}) == len(found)
        assert all(s.why and s.value for s in found)


def test_what_is_safe_on_local_disks_only_is_set_there_only() -> None:
    local, cluster = ({s.key for s in settings(local=local)} for local in (True, False))
    assert local - cluster == {CHECKPOINTS, "spark.driver.memory"}
    assert cluster - local == {"spark.jars", "spark.plugins"}


def test_pools_come_with_the_file_that_describes_them() -> None:
    fair = {s.key: s.value for s in settings(fair=True)}
    assert fair["spark.scheduler.mode"] == "FAIR"
    assert fair["spark.scheduler.allocation.file"] == str(allocation_file())
    assert "spark.scheduler.mode" not in {s.key for s in settings()}


def test_the_running_session_lacks_nothing_and_knows_the_classes(spark: SparkSession) -> None:
    assert missing(spark) == []
    classes = jvm.load(spark)
    assert classes.java.lang.Class.forName(jvm.CHANNEL).getSimpleName() == "Channel"
    assert spark.sparkContext.getConf().get(CHECKPOINTS) == jvm.CHECKPOINTS


def test_an_unknown_master_is_refused_with_examples() -> None:
    with pytest.raises(ConfigError, match=r"master 'somewhere' is unknown.*local\[4\]"):
        session("x", master="somewhere")


def test_a_pipeline_lives_in_a_hidden_folder_of_its_name() -> None:
    assert str(folder_of("fraud")) == ".treadle/fraud"


def test_users_settings_win_and_a_session_without_ours_can_still_run_pipelines() -> None:
    """In a process of its own, since a JVM has one session's settings for good."""
    script = """
import json, tempfile
from treadle import Pipeline
from treadle.pipelines.spark.session import missing, session

spark = session("own", master="local[2]", cheap=False, config={
    "spark.sql.shuffle.partitions": 3, "spark.driver.extraClassPath": "/nowhere.jar", "spark.driver.memory": "600m"})
conf = spark.sparkContext.getConf()
p = Pipeline("own-settings")
p.feed("fed", schema="a bigint")
p.write("out", reads="fed", format="noop")
with tempfile.TemporaryDirectory() as folder, p.start(spark, folder=folder) as run:
    run.feed("fed").append([{"a": 1}])
    run.stop(drain=True, timeout=120)
    rows = run.status()["hops"]["out"]["rows_in"]
path = conf.get("spark.driver.extraClassPath").split(":")
print(json.dumps({"partitions": conf.get("spark.sql.shuffle.partitions"), "path": path[0], "paths": len(path),
    "memory": conf.get("spark.driver.memory"), "missing": [s.key for s in missing(spark)], "rows": rows}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    lacking = found.pop("missing")
    assert found == {"partitions": "3", "path": "/nowhere.jar", "paths": 2, "memory": "600m", "rows": 1}
    assert {CHECKPOINTS, "spark.sql.streaming.pollingDelay", "spark.sql.shuffle.partitions"} <= set(lacking)

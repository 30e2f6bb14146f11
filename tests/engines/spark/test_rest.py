from __future__ import annotations

import pytest

from applications import SparkProcess
from support import until
from treadle.engines.spark.rest import Directory, Job, Rest
from treadle.errors import EngineError


def rest(attached: SparkProcess) -> Rest:
    return Rest(attached.told["ui"])


def job_of(attached: SparkProcess, query: str) -> Job:
    found: dict[str, Job] = {}
    until(lambda: query in found or found.update({job.query: job for job in rest(attached).running_jobs()}))
    return found[query]


def test_a_job_says_which_query_it_is_of_and_has_its_stages_in_order(attached: SparkProcess) -> None:
    job = job_of(attached, "chain")
    assert len(job.stages) == 3
    assert list(job.stages) == sorted(job.stages)
    assert len(job.run) == len(job.query_id) == 36
    assert job.execution >= 0


def test_the_plan_of_a_running_batch_has_a_stage_for_each_of_the_job(attached: SparkProcess) -> None:
    job = job_of(attached, "chain")
    plan = rest(attached).plan(job.execution)
    assert plan is not None
    assert plan.real_time
    assert len(plan.stages) == len(job.stages)
    assert plan.stages[0].operators[0] == "kafka in"
    assert plan.stages[-1].operators[-1] == "kafka out"
    assert [stage.kafka_in for stage in plan.stages] == [True, False, False]


def test_spark_is_asked_once_for_a_stage_and_not_again(attached: SparkProcess) -> None:
    job = job_of(attached, "chain")
    directory = Directory(rest(attached), patience=60.0)
    try:
        assert directory.job(job.stages[0]) is None
        assert directory.learn(job.stages)
        until(lambda: directory.job(job.stages[0]) == directory.job(job.stages[2]) == job)
        known = directory.generation
        assert directory.learn(job.stages)
        assert directory.generation == known
        assert [len(stage.operators) > 0 for stage in directory.plan(job).stages] == [True] * 3
    finally:
        directory.close()


def test_a_stage_that_nobody_knows_is_not_asked_for_in_every_round(attached: SparkProcess) -> None:
    directory = Directory(rest(attached), patience=0.0)
    asked = []
    directory._ask = lambda: asked.append(1)  # type: ignore[method-assign]
    try:
        for _ in range(1000):
            directory.learn([10**9])
        until(lambda: asked)
        assert len(asked) < 20
    finally:
        directory.close()


def test_an_answer_that_nobody_foresaw_does_not_end_the_asking() -> None:
    directory, known = Directory(Rest("http://127.0.0.1:1"), patience=0.0), Job(1, "run", "q", "id", (1,))
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        if len(asked) == 1:
            raise ValueError("a plan like no other")
        directory._note([known], {})

    directory._ask = ask  # type: ignore[method-assign]
    try:
        until(lambda: directory.learn([1]) or directory.job(1) == known)
        assert len(asked) == 2
    finally:
        directory.close()


def test_an_ui_that_is_gone_is_a_clear_error() -> None:
    with pytest.raises(EngineError, match="does not answer"):
        Rest("http://127.0.0.1:1").applications()

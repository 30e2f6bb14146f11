from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from applications import SparkProcess
from support import until
from treadle.engines.spark import pages
from treadle.engines.spark.rest import Rest


def test_the_pages_say_what_the_rest_interface_says(attached: SparkProcess) -> None:
    rest = Rest(attached.told["ui"])
    assert rest.title() == pages.title(rest.page(pages.STAGES)) == attached.told["name"]
    assert rest.applications() == [(attached.told["id"], attached.told["name"])]

    def agree() -> bool:
        quick, full = rest.running_batches(), rest.running_jobs()
        both = {job.query for job in quick} & {job.query for job in full}
        return "chain" in both and {job._replace(execution=-1, submitted=0.0) for job in full} == set(quick)

    until(agree)


@given(st.text())
def test_any_other_page_says_nothing(text: str) -> None:
    assert pages.title(text) == ""
    assert pages.batches(text) == []

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines.spark.running import Attached
from support import until
from treadle.engines.spark import pages
from treadle.engines.spark.rest import Rest


def test_the_pages_say_what_the_rest_interface_says(attached: Attached) -> None:
    rest = Rest(attached.facts["ui"])
    rest.application = attached.facts["id"]
    assert pages.identity(rest.page(pages.IDENTITY)) == (attached.facts["id"], "attached")

    def agree() -> bool:
        quick, full = rest.running_batches(), rest.running_jobs()
        both = {job.query for job in quick} & {job.query for job in full}
        return "chain" in both and {job._replace(execution=-1) for job in full} == set(quick)

    until(agree)


@given(st.text())
def test_any_other_page_says_nothing(text: str) -> None:
    assert pages.identity(text) is None
    assert pages.batches(text) == []

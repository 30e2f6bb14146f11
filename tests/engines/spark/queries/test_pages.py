from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from applications import SparkProcess
from fuzzing import FUZZ
from support import until
from treadle.engines.spark.queries import pages
from treadle.engines.spark.queries.rest import Rest


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


PIECES = st.one_of(
    st.sampled_from(["<title>", " - Stages for All Jobs</title>", '<span id="active"', "</table>", "x" * 5]),
    st.sampled_from(['<tr id="stage-7-0">', 'class="description-input">', "</span>", "&#99999999999;"]),
    st.just('<tr id="stage-' + "9" * 5000 + '-0">'),
)


@FUZZ
@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_page_is_survived(text: str) -> None:
    pages.title(text)
    pages.batches(text)


@pytest.mark.parametrize(
    "piece", ["<title>", '<span id="active"', '<tr id="stage-1-0">', '<span id="active"<tr id="stage-1-0">']
)
def test_a_page_that_begins_much_and_ends_nothing_is_read_in_one_pass(piece: str) -> None:
    page = piece * (4_000_000 // len(piece))
    assert pages.title(page) == ""
    assert pages.batches(page) == []

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from treadle.text import excerpt, visible


def test_ordinary_names_stay_as_they_are() -> None:
    assert visible("alerts-α [fraud] 50 %") == "alerts-α [fraud] 50 %"


def test_escape_sequences_are_shown_instead_of_obeyed() -> None:
    assert visible("a\x1b]0;owned\x07b\nc\x9bd\u202ee") == "a\\x1b]0;owned\\x07b\\nc\\x9bd\\u202ee"


@given(st.text(st.characters()))
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = visible(text)
    assert not {unicodedata.category(sign) for sign in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert visible(shown) == shown


def test_an_excerpt_is_one_short_line_without_control_characters() -> None:
    assert excerpt("a\n  b\tc\x1b[2J") == r"a b c\x1b[2J"
    assert excerpt("word " * 1000, 9) == "word word…"

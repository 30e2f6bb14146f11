"""Makes text of other users safe to show: names of queries, applications and threads, and their errors.

A terminal obeys control characters, so a query's name could move the cursor, set the title or hide a line. Here control
characters become visible escapes. All code that prints or logs such text passes it through `visible`.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that a terminal obeys or does not show: controls, formats (such as the direction of writing),
surrogates, private and unassigned characters, separators of lines and paragraphs."""


def visible(text: str) -> str:
    r"""Return the text with every control character as an escape: ESC becomes `\x1b`, a line break `\n`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(sign) if unicodedata.category(sign) in _HIDDEN else sign for sign in text)


def excerpt(text: str, most: int = 300) -> str:
    """Return the first `most` characters of another program's output, on one line, to quote in an error message."""
    words = " ".join(text[: 4 * most].split())
    return visible(words if len(words) <= most else f"{words[:most]}…")


def visible_lines(text: str) -> str:
    """Like `visible`, but keep line breaks: for our own text that quotes text of others."""
    return "\n".join(map(visible, text.split("\n")))


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")

"""Text that other users wrote, made safe to show: names of queries, applications and threads, and their errors.

A terminal obeys control characters, so a query's name could move the cursor, set the title or hide a line. Here they
become visible escapes. Everything that prints or logs such text passes it through `visible`.
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
    """The beginning of what another program said, on one line, for an error of ours."""
    words = " ".join(text[: 4 * most].split())
    return visible(words if len(words) <= most else f"{words[:most]}…")


def visible_lines(text: str) -> str:
    """As `visible`, but keep line breaks: for text of our own, in which others have a part."""
    return "\n".join(map(visible, text.split("\n")))


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")

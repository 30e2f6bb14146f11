"""Tables of `treadle attach` and `treadle top`, for people: instances, changes and promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from treadle import durations
from treadle.cli import adaptive_lines
from treadle.cli.shown import plain_table, shown, shown_lines
from treadle.enforce import label
from treadle.text import visible

if TYPE_CHECKING:
    from treadle.attachment import Attachment


def table(status: Mapping[str, Any]) -> Table:
    """Return an attachment's status as a table with a row for each instance."""
    grid = plain_table(title(status))
    several = len(status["applications"]) > 1
    ruled = any(row.get("rule") for row in status["rows"])
    for name in ("query", *(["rule"] if ruled else []), "operator"):
        grid.add_column(name, overflow="ellipsis", no_wrap=True, max_width=34)
    for name in ("thread", "queue", "latency", "cost", "CPU", "wait", "priority"):
        grid.add_column(name, justify="right", no_wrap=True)
    for name in ("now", "last change", "why"):
        grid.add_column(name, overflow="ellipsis", no_wrap=True)
    for row in status["rows"]:
        first = next((t for t in row["threads"] if t["role"] == "main"), row["threads"][0])
        more = f" +{len(row['threads']) - 1}" if len(row["threads"]) > 1 else ""
        query = f"{row['application']}/{row['query']}" if several else row["query"]
        index = f"[{row['index']}]" if row["index"] else ""
        queue = ("~" if row["queue_is_estimate"] else "") + _number(row["queue"])
        numbers = (queue, _seconds(row["latency"]), _cost(row["cost"]), _part(row["cpu"]), _part(row["wait"]))
        rule = [row["rule"] or "-"] if ruled else []
        cells = (query, *rule, row["operator"] + index, f"{first['tid']}{more}", *numbers, _number(row["priority"]))
        grid.add_row(*map(shown, (*cells, first["has"], row["change"], row["why"])))
    said = [*adaptive_lines.lines(status), *([] if status["quality"] is None else [kept(status["quality"])])]
    if said:
        grid.caption, grid.caption_justify = shown_lines("\n".join(said)), "left"
    return grid


def kept(quality: Mapping[str, Any]) -> str:
    """Return lines on promises: the share of its rows that each query should keep and has kept, and minima not kept."""
    parts, whole = [], []
    for each in quality["queries"]:
        if each["min_accuracy"] == 1.0:
            continue
        if each["keeps_all"] is None:
            wants, least, has = (_part(each[key]) for key in ("promised", "min_accuracy", "accuracy"))
            now = f"has {has}" if each["measured"] else "not measured yet"
            parts.append(f"{visible(each['query'])} {wants} (at least {least}, {now})")
        else:
            whole.append(visible(f"'{each['query']}' keeps all rows: {each['keeps_all']}"))
    for name, times in quality["suspended"].items():
        whole.append(
            visible(f"the agent in '{name}' has kept all rows {times} times: it received nothing from Treadle")
        )
    return "\n".join([f"rows kept: {', '.join(parts) or 'all'}", *whole, *map(visible, quality["short"])])


def title(status: Mapping[str, Any]) -> str:
    """Return a status in one line."""
    names = ", ".join(each["name"] + (" (ended)" if each["ended"] else "") for each in status["applications"])
    if status["policy"] == "none":
        return names
    does = "would change" if status["dry_run"] else "changed"
    off = "".join(f"; real-time off: {reason}" for reason in status["released"].values())
    every = durations.text(status["period"])
    rules = f" with {len(status['rules'])} rules" if status.get("rules") else ""
    how = f"{status['policy']}{rules} by {status['enforce']} every {every}"
    return f"{names}: {how}, {does} {status['changes']} values{off}"


def changes(attachment: Attachment) -> Table:
    """Return a table of all values that were changed or, in a dry run, would be changed."""
    from treadle.attachment.shown import report

    grid = plain_table(title(attachment.status()))
    grid.caption, grid.caption_justify = shown_lines(unknown(attachment.status())), "left"
    for name in ("instance", "thread or group", "knob", "from", "to", "why"):
        grid.add_column(name, overflow="fold")
    for decision in report.net(attachment.loop.decisions):
        cells = (label(decision.target), decision.knob, *report.ends(decision), report.why(decision))
        grid.add_row(*map(shown, (decision.instance or "-", *cells)))
    return grid


def unknown(status: Mapping[str, Any]) -> str:
    """Return lines on what the table of changes can't show: inactive queries, and why there are few or no changes."""
    lines = []
    unseen, unplanned = (visible(", ".join(status[key])) for key in ("unseen", "unplanned"))
    if unseen:
        lines.append(f"no activity seen of {unseen} (observe longer: --for 10s)")
    if unplanned:
        lines.append(f"Spark has not shown the plan of {unplanned} yet (observe longer: --for 10s)")
    elif not status["seen"] and not unseen:
        lines.append("no query was seen (observe longer: --for 10s)")
    elif not status["changes"] and not unseen:
        lines.append("nothing to change: everything that was active has the same priority")
    if status["partial"]:
        lines.append(
            "a real run may change more: it loads an agent, without which threads that work on a batch only briefly"
            " are seen only in part (to load it in a dry run: --agent)"
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _part(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else durations.text(max(0.001, round(value, 3)))


def _cost(value: float | None) -> str:
    return "-" if value is None or value <= 0 else durations.text(value)

"""`treadle doctor`: shows which requirements are met or missing, and how to provide the missing ones."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from treadle.cli.shown import say
from treadle.errors import EngineError


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Check the requirements of `treadle run`, what `treadle attach` can do, and the settings for Spark."""
    from treadle import doctor as library
    from treadle.cli import _err, _show

    with _err.status("checking", spinner="dots"):
        report = library.examine()
    if as_json:
        found = {
            "ready": not report.missing,
            "checks": [asdict(check) for check in report.checks],
            "settings": [setting._asdict() for setting in report.settings],
            "pipelines": list(report.pipelines),
        }
        click.echo(json.dumps(found))
    else:
        _show(["what", "", "found", "remedy"], [(c.name, c.state, c.found, c.remedy) for c in report.checks])
        _show(["Spark is set up with", "", "because"], list(report.settings))
        say(f"running pipelines: {', '.join(report.pipelines) or 'none'}")
    if report.missing:
        first = report.missing[0]
        others = f" and {len(report.missing) - 1} more" if len(report.missing) > 1 else ""
        raise EngineError(
            f"{first.name}{others} missing: {first.found}", where="treadle run can't work", remedy=first.remedy
        )

"""The page on the adaptive policy: its file is valid, its text makes a policy, and its table has what is measured."""

from __future__ import annotations

import re
from pathlib import Path

from treadle import config
from treadle.attachment import plan
from treadle.attachment.policies.around import AdaptiveUnderAttach
from treadle.decide.adaptive import parse_objective
from treadle.pipelines.hops.options import Options
from treadle.pipelines.hops.totals import OBJECTIVES

PATH = Path(__file__).parent.parent / "docs" / "adaptive.md"
PAGE = PATH.read_text(encoding="utf-8")


def test_the_file_and_the_text_are_valid(tmp_path: Path) -> None:
    shown = tmp_path / "shown.toml"
    shown.write_text(re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)[0], encoding="utf-8")
    Options(policy=config.load(str(shown))[0].policy("adaptive"))
    (text,) = re.findall(r'p\.start\(policy="(.*?)"\)', PAGE)
    Options(policy=text)


def test_the_table_has_what_is_measured() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    names = {parse_objective(f"min {row[0].split('`')[1]}").metric: row for row in rows}
    assert set(names) == set(OBJECTIVES)
    assert {name for name, row in names.items() if row[-1].rstrip(" |").endswith("yes")} == set(
        AdaptiveUnderAttach.COLUMNS
    )


def test_what_is_chosen_from_under_attach_is_said() -> None:
    for name in plan.LEARNT["candidates"].split("+"):
        assert f"`{name}`" in PAGE

from __future__ import annotations

import pytest

from treadle.attachment import plan


@pytest.mark.parametrize(
    ("policy", "enforce", "loads"),
    [
        ("congestion-aware", "nice", True),
        ("user-priority", "nice", False),
        ("downstream-first", "cgroup", False),
        ("user-priority", "rt", True),  # its watchdog has to see work move on
    ],
)
def test_an_agent_is_loaded_only_where_its_figures_are_needed_or_it_is_asked_for(
    policy: str, enforce: str, loads: bool
) -> None:
    chosen = plan.make(policy, enforce, 0.05, {}, {}, ("*",))
    assert chosen.loads_agent(None, dry_run=False) is loads
    assert not chosen.loads_agent(None, dry_run=True)
    for dry_run in (False, True):
        assert chosen.loads_agent(True, dry_run=dry_run)
        assert not chosen.loads_agent(False, dry_run=dry_run)

"""What tables say of an adaptive policy."""

from __future__ import annotations

from treadle.cli.adaptive_lines import lines


def test_a_policy_that_is_not_adaptive_has_no_lines() -> None:
    assert lines({}) == lines({"adaptive": None}) == []


def test_scores_choices_and_the_reason_are_shown_without_control_characters() -> None:
    candidates = {
        "chain": {"score": 1.234, "chosen": 3, "measured": 9},
        "my\x1bown": {"score": None, "chosen": 0, "measured": 0},
    }
    status = {
        "objectives": ["min latency 0.7", "max output_rate 0.3"],
        "candidates": candidates,
        "in_charge": "chain",
        "why": "ucb: bound 1.3",
        "learned": "/kept/learned.json",
    }
    told = "\n".join(lines({"adaptive": status}))
    assert "\x1b" not in told
    for part in (
        "chain in charge (ucb: bound 1.3)",
        "min latency 0.7, max output_rate 0.3",
        "chain 1.23 (3x)",
        "not measured (0x)",
        "/kept/learned.json",
    ):
        assert part in told
    assert "nobody yet in charge" in lines({"adaptive": {**status, "in_charge": None}})[0]

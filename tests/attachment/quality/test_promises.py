"""What may be promised of running queries, and what is said of what may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.attachment.quality.promises import ALL, of, read
from treadle.decide.quality import Promise
from treadle.errors import ConfigError


def test_a_file_has_a_table_for_each_pattern_and_the_first_that_fits_counts(tmp_path: Path) -> None:
    file = tmp_path / "queries.toml"
    first = "[queries.enrich-first]\npriority = 2\nmin_accuracy = 0.5\n"
    file.write_text(f'{first}[queries."enrich-*"]\npriority = 1\nmin_accuracy = 0\n')
    found = read(file)
    assert found == {"enrich-first": Promise(2.0, 0.5), "enrich-*": Promise(1.0, 0.0)}
    assert of("enrich-first", found) == Promise(2.0, 0.5)
    assert of("enrich-other", found) == Promise(1.0, 0.0)
    assert of("alerts", found) == ALL


def test_a_mapping_does_as_well() -> None:
    assert read({"*": {"priority": 0, "min_accuracy": 0.5}}) == {"*": Promise(0.0, 0.5)}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[queries.a", "is not valid TOML"),
        ("", "contains no promise"),
        ("[queries]\n", "contains no promise"),
        ("queries = 3\n", "contains no promise"),
        ("[query.a]\npriority = 1\n", "unknown key 'query'"),
        ("[queries]\na = 3\n", "query 'a': is 3"),
        ("[queries.a]\nmin_accuracy = 0.5\n", "query 'a': has no priority"),
        ("[queries.a]\npriority = 1\n", "query 'a': has no min_accuracy"),
        ("[queries.a]\npriority = 1\nmin_accuracy = 1.5\n", "query 'a': min_accuracy is 1.5"),
        ("[queries.a]\npriority = 1\nmin_accuracy = -0.1\n", "query 'a': min_accuracy is -0.1"),
        ("[queries.a]\npriority = 1\nmin_accuracy = nan\n", "query 'a': min_accuracy is nan"),
        ("[queries.a]\npriority = true\nmin_accuracy = 0.5\n", "query 'a': priority is True"),
        ("[queries.a]\npriority = 1\nmin_accuracy = 0.5\nshed = 1\n", "query 'a': unknown key 'shed'"),
        ("[queries.a]\npriority = 1\nmin_accuracy = 1.0\n", "every query must keep all of its rows"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "queries.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(file)
    assert str(caught.value).startswith(str(file))
    assert problem in str(caught.value)
    assert caught.value.remedy


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: can't read it"):
        read("nowhere.toml")

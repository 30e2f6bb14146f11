from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from treadle.errors import ConfigError
from treadle.pipelines.nodes.ddl import parse

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SIMPLE = (
    *("boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double"),
    *("date", "timestamp", "timestamp_ltz", "timestamp_ntz", "string", "binary", "decimal", "dec", "numeric"),
    *("decimal(10)", "DECIMAL ( 38 , 18 )", "numeric(5,2)"),
)
NESTED = (
    "array<int>",
    "map<string, array<bigint>>",
    "struct<x: int, y: string>",
    "STRUCT<x INT NOT NULL, `odd name`: map<int, struct<z: decimal(4, 2)>>>",
    "struct<>",
)


def test_every_type_is_what_spark_makes_of_it(spark: SparkSession) -> None:
    for kind in (*SIMPLE, *NESTED):
        for text in (f"a {kind}", f"a: {kind}, `b``c` {kind.upper()} NOT NULL"):
            assert parse(text) == StructType.fromDDL(text), text
    assert parse("a int COMMENT 'one, two'") == StructType.fromDDL("a int")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a", "a column has no type"),
        ("a bigint,", "a column has no name"),
        ("a bigint b string", "unexpected 'b'"),
        ("a wagon", "'wagon' is not a type"),
        ("a array<int", "expected '>'"),
        ("a map<int>", "expected ','"),
        ("a decimal(39, 2)", r"no decimal\(39, 2\)"),
        ("a decimal(x)", "'x' is not a number"),
        ("a int NOT", "expected 'null'"),
        ("a int COMMENT none", "a comment is not in quotes"),
        ("a int; b int", "unexpected ';'"),
        ("array<" * 200, "is not a type"),
        ("a " + "array<" * 200, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_named_with_the_types_there_are(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as refused:
        parse(text)
    assert "timestamp_ntz" in refused.value.remedy


@given(st.text(alphabet="ab <>(),:`'int", max_size=30))
def test_any_text_is_a_schema_or_one_clear_error(text: str) -> None:
    with suppress(ConfigError):
        assert isinstance(parse(text), StructType)


def test_a_process_without_a_session_fills_a_feed_and_needs_no_schema_the_second_time(tmp_path: Path) -> None:
    code = """
import sys, treadle
folder = sys.argv[1]
try:
    treadle.feed(folder)
except treadle.errors.ConfigError as error:
    assert "give its schema" in error.remedy, error
with treadle.feed(folder, "id bigint, tags array<string>", limit_rows=10) as feed:
    feed.append([{"id": 1, "tags": ["a"]}])
with treadle.feed(folder) as feed:
    feed.append([{"id": 2, "tags": []}])
from treadle.pipelines.channels.log import Writer, read
with Writer(folder, "id bigint, tags array<string>") as writer:
    writer.append([{"id": 3, "tags": None}])
assert read(folder)["id"].to_pylist() == [1, 2, 3]
from pyspark import SparkContext
assert SparkContext._gateway is None
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "feed")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

"""Parses a schema in Spark's DDL ("id bigint, at timestamp") without a JVM, which Spark's own parser needs.

This parser is for processes that fill a feed without a Spark session, and knows only the types that a channel can
carry. Where a session runs, Spark's own parser is used instead.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from treadle.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\w+|[<>(),:])")
_SIMPLE = {
    **dict.fromkeys(("boolean",), "BooleanType"),
    **dict.fromkeys(("tinyint", "byte"), "ByteType"),
    **dict.fromkeys(("smallint", "short"), "ShortType"),
    **dict.fromkeys(("int", "integer"), "IntegerType"),
    **dict.fromkeys(("bigint", "long"), "LongType"),
    **dict.fromkeys(("float", "real"), "FloatType"),
    "double": "DoubleType",
    "date": "DateType",
    **dict.fromkeys(("timestamp", "timestamp_ltz"), "TimestampType"),
    "timestamp_ntz": "TimestampNTZType",
    "string": "StringType",
    "binary": "BinaryType",
}
_DECIMAL = ("decimal", "dec", "numeric")
_KNOWN = f"{', '.join(_SIMPLE)}, decimal(p, s), array<…>, map<…, …>, struct<name: …>"
_DEEPEST = 100
"""Deepest nesting of types, so that the parser stays within Python's recursion limit."""


def parse(text: str) -> StructType:
    """Parse a DDL text into a schema."""
    return _Parser(text).columns()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at = 0
        stripped = text.rstrip()
        while at < len(stripped):
            match = _TOKEN.match(stripped, at)
            if match is None:
                raise self._wrong(f"unexpected '{stripped[at:].strip()[:1]}'")
            self._tokens.append(match[1])
            at = match.end()
        self._at = 0
        self._depth = 0

    def columns(self) -> StructType:
        found = self._fields()
        if self._next():
            raise self._wrong(f"unexpected '{self._next()}'")
        return found

    def _fields(self) -> StructType:
        from pyspark.sql.types import StructType

        found = [self._field()]
        while self._take(","):
            found.append(self._field())
        return StructType(found)

    def _field(self) -> StructField:
        from pyspark.sql.types import StructField

        name = self._name()
        self._take(":")
        kind, nullable = self._type(), True
        if self._take("not"):
            self._demand("null")
            nullable = False
        if self._take("comment"):
            if self._next()[:1] not in ("'", '"'):
                raise self._wrong("a comment is not in quotes")
            self._at += 1
        return StructField(name, kind, nullable)

    def _name(self) -> str:
        token = self._next()
        if token.startswith("`"):
            self._at += 1
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            raise self._wrong("a column has no name" if not token else f"'{token}' is not a name")
        self._at += 1
        return token

    def _type(self) -> DataType:
        from pyspark.sql import types

        word = self._next().lower()
        self._at += 1
        if word in _SIMPLE:
            made: DataType = getattr(types, _SIMPLE[word])()
            return made
        if word in _DECIMAL:
            return self._decimal()
        if word not in ("array", "map", "struct"):
            raise self._wrong(f"'{word}' is not a type" if word else "a column has no type")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong("its types are nested too deeply")
        self._demand("<")
        if word == "array":
            made = types.ArrayType(self._type())
        elif word == "map":
            key = self._type()
            self._demand(",")
            made = types.MapType(key, self._type())
        else:
            made = types.StructType() if self._next() == ">" else self._fields()
        self._demand(">")
        self._depth -= 1
        return made

    def _decimal(self) -> DataType:
        from pyspark.sql.types import DecimalType

        if not self._take("("):
            return DecimalType()
        precision, scale = self._number(), 0
        if self._take(","):
            scale = self._number()
        self._demand(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise self._wrong(f"there is no decimal({precision}, {scale})")
        return DecimalType(precision, scale)

    def _number(self) -> int:
        token = self._next()
        if not re.fullmatch("[0-9]{1,9}", token):
            raise self._wrong(f"'{token}' is not a number")
        self._at += 1
        return int(token)

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str) -> bool:
        if self._next().lower() != wanted:
            return False
        self._at += 1
        return True

    def _demand(self, wanted: str) -> None:
        if not self._take(wanted):
            raise self._wrong(f"expected '{wanted}', not '{self._next()}'")

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(
            f"'{self._text}' is not a schema of columns: {what}",
            remedy=f"name them, as 'id bigint, at timestamp'; without a Spark session types are {_KNOWN}",
        )

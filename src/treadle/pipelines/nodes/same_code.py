"""Compares two versions of a function: whether they do the same, as far as their code and the values they use say.

The two versions are of two loads of one file, so they are different objects even if nothing has changed. The line at
which a function begins does not count. Modules count as the same if their names are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
Pairs = dict[tuple[int, int], tuple[Any, Any]]
"""Objects that are compared already, by their ids. It refers to them, so that no other object gets such an id."""


def same(one: Any, other: Any, compared: Pairs | None = None) -> bool:
    """Whether two values are the same, functions by their code and by the globals that they use.

    Objects of a class without an `==` of its own are compared by their attributes. Functions may refer to each other:
    a pair that is in `compared` counts as the same.
    """
    compared = {} if compared is None else compared
    if one is other or (id(one), id(other)) in compared:
        return True
    compared[id(one), id(other)] = one, other
    if _is_udf(one) and _is_udf(other):
        return same(_parts_of_udf(one), _parts_of_udf(other), compared)
    if isinstance(one, partial) and isinstance(other, partial):
        return same((one.func, one.args, one.keywords), (other.func, other.args, other.keywords), compared)
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        return _same_function(one, other, compared)
    if isinstance(one, ModuleType) and isinstance(other, ModuleType):
        return one.__name__ == other.__name__
    if isinstance(one, type) and isinstance(other, type):
        return one.__qualname__ == other.__qualname__ and _same_items(_members(one), _members(other), compared)
    if type(one) is not type(other) and not same(type(one), type(other), compared):
        return False
    return _same_value(one, other, compared)


def _same_value(one: Any, other: Any, compared: Pairs) -> bool:
    if isinstance(one, _PLAIN):
        return bool(one == other or (one != one and other != other))
    if isinstance(one, CodeType):
        return _same_code(one, other, compared)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b, compared) for a, b in zip(one, other, strict=True))
    if isinstance(one, Mapping):
        return _same_items(one, other, compared)
    if type(one) is type(other) and _has_own_equality(type(one)):
        try:
            return bool(one == other)
        except Exception:  # as of arrays, which have no single truth value
            return repr(one) == repr(other)
    wrapped = getattr(one, "__wrapped__", None), getattr(other, "__wrapped__", None)
    if wrapped[0] is not None and not same(*wrapped, compared):
        return False
    return _same_items(getattr(one, "__dict__", {}), getattr(other, "__dict__", {}), compared)


def _same_items(one: Mapping[Any, Any], other: Mapping[Any, Any], compared: Pairs) -> bool:
    return one.keys() == other.keys() and all(same(one[key], other[key], compared) for key in one)


def _same_function(one: FunctionType, other: FunctionType, compared: Pairs) -> bool:
    ours, theirs = (
        (function.__defaults__, function.__kwdefaults__, _cells(function), _used(function)) for function in (one, other)
    )
    return _same_code(one.__code__, other.__code__, compared) and same(ours, theirs, compared)


def _same_code(one: CodeType, other: CodeType, compared: Pairs) -> bool:
    ours, theirs = (
        (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags, code.co_consts)
        for code in (one, other)
    )
    return same(ours, theirs, compared)


def _cells(function: FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            found.append(None)
    return found


def _used(function: FunctionType) -> dict[str, Any]:
    """The globals that a function uses, by name."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    return {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and the code of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _members(kind: type) -> dict[str, Any]:
    """What a class defines, without what Python adds."""
    added = ("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__")
    return {name: value for name, value in vars(kind).items() if name not in added}


def _is_udf(value: object) -> bool:
    """Whether it is a user-defined function of Spark, an object or a function that calls one."""
    return hasattr(value, "func") and hasattr(value, "evalType")


def _parts_of_udf(value: Any) -> tuple[Any, ...]:
    """What makes up a user-defined function; it also has an object of the JVM once it was used."""
    kind = vars(value).get("_returnType", vars(value).get("returnType"))
    return value.func, value.evalType, str(kind)


def _has_own_equality(kind: type) -> bool:
    return any("__eq__" in vars(each) for each in kind.__mro__ if each is not object)

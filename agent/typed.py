"""From decoded JSON to dataclasses, every field checked by its annotation: no type is taken on trust.

Annotations are written for Python 3.8: `Optional[X]`, `Tuple[X, ...]` and `Dict[str, X]` only, because they
are read at run time.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import typing
from typing import Any, Dict, Optional, Tuple, Type, TypeVar, Union

MAX_LINE = 256 * 1024
"""Bytes of one line of the wire, the newline included."""

MAX_TEXT = 64 * 1024
"""Characters of one string field; a field called `data` may fill a line."""

MAX_FLOAT = sys.float_info.max

MAX_ITEMS = 16384
"""Entries of one list or object."""

MAX_DEPTH = 32
"""Lists and objects inside one another where a field may be anything."""

T = TypeVar("T")


class WireError(ValueError):
    """A line that is not a valid message; the text says what is wrong with it."""


def from_json(cls: Type[T], value: Any, where: str = "") -> T:
    """Build the dataclass `cls` from a decoded JSON object, checking every field. Raises WireError."""
    where = where or cls.__name__.lower()
    if not isinstance(value, dict):
        raise WireError(f"{where} is not an object")
    arguments = {}
    for name, hint, required in _fields(cls):  # type: ignore[arg-type]  # typeshed: a class is hashable
        if name in value:
            limit = MAX_LINE if name == "data" else MAX_TEXT
            arguments[name] = _check(hint, value[name], f"{where}.{name}", limit)
        elif required:
            raise WireError(f"{where}.{name} is missing")
    return cls(**arguments)


def to_json(value: Any) -> Dict[str, Any]:
    """The JSON object of a dataclass: the inverse of `from_json`."""
    return dataclasses.asdict(value)


@functools.lru_cache(maxsize=None)
def _fields(cls: Type[Any]) -> Tuple[Tuple[str, Any, bool], ...]:
    hints = typing.get_type_hints(cls)
    return tuple(
        (
            field.name,
            hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(cls)
    )


def refuse_constant(name: str) -> None:
    """What `json.loads` is given to refuse NaN and infinity. Raises ValueError."""
    raise ValueError(f"{name} is not a number here")


def _check(hint: Any, value: Any, where: str, limit: int = MAX_TEXT) -> Any:
    if hint is Any:
        _check_any(value, where, MAX_DEPTH)
        return value
    if hint is str:
        if not isinstance(value, str):
            raise WireError(f"{where} is not a string")
        if len(value) > limit:
            raise WireError(f"{where} has {len(value)} characters, over {limit}")
        return value
    if hint is bool:
        if not isinstance(value, bool):
            raise WireError(f"{where} is not true or false")
        return value
    if hint is int:
        if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
            raise WireError(f"{where} is not a 64-bit integer")
        return value
    if hint is float:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise WireError(f"{where} is not a number")
        # NaN fails this too, and so does an integer of which float() would raise.
        if not -MAX_FLOAT <= value <= MAX_FLOAT:
            raise WireError(f"{where} is not a finite number")
        return float(value)
    origin = typing.get_origin(hint)
    if origin is Union:
        return _check_union(hint, value, where, limit)
    if origin is tuple:
        if not isinstance(value, list):
            raise WireError(f"{where} is not a list")
        if len(value) > MAX_ITEMS:
            raise WireError(f"{where} has {len(value)} entries, over {MAX_ITEMS}")
        item = typing.get_args(hint)[0]
        return tuple(_check(item, entry, f"{where}[{index}]") for index, entry in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise WireError(f"{where} is not an object")
        if len(value) > MAX_ITEMS:
            raise WireError(f"{where} has {len(value)} entries, over {MAX_ITEMS}")
        item = typing.get_args(hint)[1]
        return {key: _check(item, entry, f"{where}.{key[:80]}") for key, entry in value.items()}
    return from_json(hint, value, where)


def _check_any(value: Any, where: str, depth: int) -> None:
    """Refuse in parameters and results what cannot be encoded again, or only by a deep recursion."""
    if isinstance(value, float) and not -MAX_FLOAT <= value <= MAX_FLOAT:
        raise WireError(f"{where} is not a finite number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise WireError(f"{where} is not a 64-bit integer")
    if isinstance(value, (list, dict)):
        if not depth:
            raise WireError(f"{where} is nested more than {MAX_DEPTH} deep")
        for entry in value.values() if isinstance(value, dict) else value:
            _check_any(entry, where, depth - 1)


def _check_union(hint: Any, value: Any, where: str, limit: int) -> Any:
    options = typing.get_args(hint)
    if value is None:
        if type(None) in options:
            return None
        raise WireError(f"{where} is null")
    reason: Optional[WireError] = None
    for option in sorted((o for o in options if o is not type(None)), key=_narrowest_first):
        try:
            return _check(option, value, where, limit)
        except WireError as error:
            reason = error
    raise reason or WireError(f"{where} is of no known type")


def _narrowest_first(option: Any) -> int:
    return (bool, int, float, str).index(option) if option in (bool, int, float, str) else 4

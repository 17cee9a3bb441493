"""Reading values out of JSON in which anything may stand: one of another kind counts as not there."""

from __future__ import annotations


def strings(value: object) -> list[str]:
    """The items of a list as strings; of anything else none."""
    return [str(item) for item in value] if isinstance(value, list) else []


def table(value: object) -> dict[object, object]:
    """An object, or an empty one."""
    return value if isinstance(value, dict) else {}


def integer(value: object) -> int | None:
    """An integer, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: object, default: float) -> float:
    """A number, or `default`."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default
    except OverflowError:  # JSON has integers of any size
        return default

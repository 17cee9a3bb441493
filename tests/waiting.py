"""Waiting for a condition with a deadline: the only way in which tests wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE = 0.01
"""Seconds between two looks."""


def wait_until(predicate: Callable[[], T], timeout: float = 15.0, message: str = "") -> T:
    """Call `predicate` until what it returns is true, and return that; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(predicate, timeout, message, result))
        time.sleep(PAUSE)


async def eventually(
    predicate: Callable[[], T | Awaitable[T]], timeout: float = 15.0, message: str = ""
) -> T:
    """`wait_until` for coroutines: the event loop goes on meanwhile. `predicate` may be async itself."""
    deadline = time.monotonic() + timeout
    while True:
        result = predicate()
        if isinstance(result, Awaitable):
            result = await result
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(predicate, timeout, message, result))
        await asyncio.sleep(PAUSE)


def _complaint(predicate: object, timeout: float, message: str, last: object) -> str:
    what = message or getattr(predicate, "__qualname__", repr(predicate))
    return f"not within {timeout:g} s: {what} (last value: {last!r})"

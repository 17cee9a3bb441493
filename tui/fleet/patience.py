"""Waiting with a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float | None, awaitable: Awaitable[T]) -> T:
    """Wait for `awaitable` for so long; None is for ever. Raises TimeoutError, and then cancels it.

    `asyncio.wait_for` before Python 3.12 loses a cancellation that comes in the moment in which what it waits
    for is done: a task that is to end then goes on. This does not.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()

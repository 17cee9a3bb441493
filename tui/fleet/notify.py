"""The user's own command for what happens to a run: it gets one JSON object on its standard input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable
from typing import Any

NOTIFY_SECONDS = 30.0
"""How long one call of the command may take; then it is killed."""

MAX_WAITING = 64
"""So many messages wait for a command that is slow; the oldest are dropped."""

COMPLAINT_BYTES = 2000


class Notifier:
    """Calls `command`, a line for the shell, once for each message and in their order, beside all else.

    `complain` is told in a sentence when it fails or hangs: nothing else comes of that.
    """

    def __init__(self, command: str, complain: Callable[[str], None]) -> None:
        self._command = command
        self._complain = complain
        self._waiting: list[dict[str, Any]] = []
        self._task: asyncio.Task[None] | None = None

    def tell(self, message: dict[str, Any]) -> None:
        """Have the command called with `message`; returns at once."""
        self._waiting.append(message)
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[0]
            self._complain("the notify command is too slow: a message was dropped")
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._call_all())

    async def close(self, *, patient: bool) -> None:
        """End; when `patient`, wait for what was told to be passed on, at most as long as a call may take."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=NOTIFY_SECONDS if patient else 0)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _call_all(self) -> None:
        while self._waiting:
            message = self._waiting.pop(0)
            try:
                await self._call(message)
            except OSError as error:
                self._complain(f"the notify command cannot be started: {error.strerror}")

    async def _call(self, message: dict[str, Any]) -> None:
        process = await asyncio.create_subprocess_shell(
            self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        data = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        over = False
        try:
            # A program that it leaves in the background and that keeps standard error open counts as well.
            said = await asyncio.wait_for(_passed(process, data), NOTIFY_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            self._complain(f"the notify command did not end within {NOTIFY_SECONDS:g} s and was killed")
        else:
            over = True
            if process.returncode:
                words = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
                more = f": {words}" if words else ""
                self._complain(f"the notify command ended with {process.returncode}{more}")
        finally:
            if not over:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


async def _passed(process: asyncio.subprocess.Process, data: bytes) -> bytes:
    """Hand `data` over and wait for the end; returns the last of what was said on standard error."""
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write(data)  # a command that does not read it is no trouble: it is not waited for
    process.stdin.close()
    said = b""
    while piece := await process.stderr.read(65536):
        said = (said + piece)[-COMPLAINT_BYTES:]
    await process.wait()
    return said

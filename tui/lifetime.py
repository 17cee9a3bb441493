"""How the app and the demo end in order: by the user, by a signal, or with the terminal under them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

if TYPE_CHECKING:
    from .app import EncampApp

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_lent = False
"""Whether another command has the terminal: what ctrl-c means is its business then."""


class Signalled(Exception):
    """A signal asked us to end. `exit_code` is what a shell reports for it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


async def until_signal(work: Coroutine[Any, Any, T]) -> T:
    """Do `work`; the first signal cancels it, and when it has cleaned up Signalled is raised.

    Further signals change nothing: an impatient user must not leave half of it behind.
    """
    task = asyncio.ensure_future(work)
    caught: list[int] = []

    def on_signal(number: int) -> None:
        if not caught and not (_lent and number == signal.SIGINT):
            caught.append(number)
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task
    except asyncio.CancelledError:
        if caught:
            raise Signalled(caught[0]) from None
        raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def terminal_lent() -> Iterator[None]:
    """While another command has the terminal, ctrl-c there does not end us as well."""
    global _lent
    _lent = True
    try:
        yield
    finally:
        _lent = False


async def show(app: EncampApp) -> int:
    """Run the app on the terminal until it is left, and return its exit code.

    When cancelled, it is left as by the user: the terminal is as it was before.
    """
    app.driver_class = _driver()
    showing = asyncio.ensure_future(app.run_async())
    try:
        await asyncio.shield(showing)
    finally:
        if not showing.done():
            app.exit()
            await showing
    return app.return_code or 0


def _driver() -> Any:
    from textual.drivers.linux_driver import LinuxDriver

    class Driver(LinuxDriver):
        """Textual's thread that writes dies with the terminal, and the app would wait for it for ever."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._file: Any = _Lasting(self._file)

    return Driver


class _Lasting:
    """A terminal to write to, which may disappear."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError:
            self._gone()

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError:
            self._gone()

    def fileno(self) -> int:
        return self._file.fileno()

    def _gone(self) -> None:
        """From here on all output goes nowhere, the last words of the interpreter too."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (1, 2):
            os.dup2(nowhere, fd)
        os.close(nowhere)

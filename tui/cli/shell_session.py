"""A session on a host at this terminal, or between pipes: keys go there, output comes here."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import output

if TYPE_CHECKING:
    from ..fleet.ssh.interactive import Interactive, Terminal

CHUNK = 64 * 1024
"""Bytes that are handed on at a time."""

STDIN, STDOUT, STDERR = 0, 1, 2

PLAIN = b"\x1b[?1049l\x1b[?1000;1002;1003;1006;2004l\x1b[?25h\x1b[0m\r\n"
"""Leaves what a full-screen program that was cut off has set up: screen, mouse, cursor, colours."""


async def run(args: argparse.Namespace) -> int:
    """Connect, hand streams on until the end, and exit in the same way."""
    from ..fleet.errors import EncampError, UsageError
    from ..lifetime import Signalled, until_signal

    command = " ".join(args.extra) or None
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if command is None and not on_terminal:
        raise UsageError(
            "A shell needs a terminal, and there is none here.",
            f"Without one, give a command: encamp shell {args.host} -- COMMAND",
        )
    try:
        return await until_signal(_session(args, command, on_terminal=on_terminal))
    except Signalled as end:
        return end.exit_code
    except EncampError as error:
        if not (args.wait_on_error and on_terminal):
            raise
        output.print_error(error, as_json=False)
        output.note("enter goes back")
        await _keyboard()
        return error.exit_code


async def _session(args: argparse.Namespace, command: str | None, *, on_terminal: bool) -> int:
    from ..fleet.ssh.client import SshClient
    from .connection import known_hosts, quiet_logging
    from .prompts import prompts

    (host,) = known_hosts([args.host])
    quiet_logging()
    connection = await SshClient().connect(host, prompts(accept_new_host_key=args.accept_new_host_key))
    try:
        remote = await connection.open_interactive(command, _terminal() if on_terminal else None)
        try:
            if not on_terminal:
                await _hand_on(remote)
            else:
                with _raw(STDIN), _resizing(remote):
                    await _hand_on(remote)
                    if connection.lost:
                        _write_all(STDOUT, PLAIN)
            return await remote.wait()
        finally:
            remote.close()
    finally:
        await connection.close()


async def _hand_on(remote: Interactive) -> None:
    """Hand on the streams until those of the host have ended."""
    typing = asyncio.ensure_future(_type(remote))
    outputs = [
        asyncio.ensure_future(_show(remote.read, STDOUT)),
        asyncio.ensure_future(_show(remote.read_error, STDERR)),
    ]
    try:
        await asyncio.gather(*outputs)
    finally:
        for task in (typing, *outputs):
            task.cancel()
        await asyncio.wait([typing, *outputs])


async def _show(read: Callable[[int], Awaitable[bytes]], target: int) -> None:
    while data := await read(CHUNK):
        # In a thread: a reader that waits must not keep us from answering the host that we are alive.
        await asyncio.to_thread(_write_all, target, data)


async def _type(remote: Interactive) -> None:
    while data := await _keyboard():
        if not await remote.write(data):
            return
    remote.write_eof()


async def _keyboard() -> bytes:
    """The next input, empty at its end."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    try:
        loop.add_reader(STDIN, lambda: None if ready.done() else ready.set_result(None))
    except PermissionError:  # a file: it cannot be waited for, and never has to be
        return await asyncio.to_thread(os.read, STDIN, CHUNK)
    try:
        await ready
        return os.read(STDIN, CHUNK)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""  # the terminal is gone
    finally:
        loop.remove_reader(STDIN)


def _write_all(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


def _terminal() -> Terminal:
    from ..fleet.ssh.interactive import Terminal

    size = os.get_terminal_size(STDIN)
    return Terminal(os.environ.get("TERM") or "dumb", size.columns, size.lines)


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Every key goes to the host, ctrl-c too, until the terminal is put back as it was."""
    before = termios.tcgetattr(terminal)
    try:
        tty.setraw(terminal, termios.TCSADRAIN)  # what was typed ahead is for the host
        yield
    finally:
        try:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        except termios.error:
            pass  # the terminal is gone


@contextmanager
def _resizing(remote: Interactive) -> Iterator[None]:
    """Pass on the sizes that the window takes."""
    loop = asyncio.get_running_loop()

    def resized() -> None:
        try:
            remote.resize(_terminal())
        except OSError:
            pass  # the terminal is gone

    loop.add_signal_handler(signal.SIGWINCH, resized)
    resized()  # it may have changed while we connected
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)

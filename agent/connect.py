"""The relay: what one SSH exec channel runs. Finds or starts the daemon, then copies bytes both ways.

Standard output carries a nonce line and then the daemon's messages; whatever goes wrong before that is one
sentence on standard error and an exit code of its own.
"""

from __future__ import annotations

import _socket
import os
import select
import sys
import time

from . import instance, paths, version

EXIT_HOME = 91
"""ENCAMP_HOME cannot be used."""
EXIT_START = 92
"""The daemon did not start."""
EXIT_SILENT = 93
"""A daemon holds the lock but cannot be talked to."""
EXIT_ENDED = 94
"""The daemon closed the connection: it was replaced or killed. Connecting again starts or finds another."""

HELLO_SECONDS = 15.0
"""A daemon that says nothing for so long hangs and is replaced; runs do not depend on it."""

RETIRE_SECONDS = 5.0
"""How long a daemon that was asked to retire may take."""

LINGER_SECONDS = 10.0
"""How long the daemon may go on answering after the viewer has finished sending."""

MAX_STARTS = 3
"""How many daemons one relay starts: one may fall over, or make room for another relay's build at once."""

CHUNK = 64 * 1024

RETIRE = b'{"kind":"request","id":0,"method":"retire","params":{}}\n'


class Silent(Exception):
    """The lock is held by something that does not answer; the text is one sentence for the user."""


def main(arguments: list[str]) -> int:
    """`connect --nonce HEX [--keep]`: relay until either side ends. Returns the exit code."""
    nonce, keep, rest = "", False, list(arguments)
    while rest:
        option = rest.pop(0)
        if option == "--keep":
            keep = True
        elif option == "--nonce" and rest:
            nonce = rest.pop(0)
        else:
            sys.stderr.write(f"encamp: connect does not know {option}\n")
            return 2
    if not nonce or nonce.strip("0123456789abcdefABCDEF"):
        sys.stderr.write("encamp: connect needs --nonce and hexadecimal digits\n")
        return 2
    os.write(1, nonce.encode("ascii") + b"\n")
    try:
        instance.enter_home(paths.home())
        channel = reach(keep)
    except instance.Unusable as error:
        return _fail(EXIT_HOME, error)
    except instance.StartFailed as error:
        return _fail(EXIT_START, error)
    except Silent as error:
        return _fail(EXIT_SILENT, error)
    return relay(channel)


def _fail(code: int, error: Exception) -> int:
    sys.stderr.write(f"encamp: {error}\n")
    return code


def reach(keep: bool) -> _socket.socket:
    """A connection to a daemon that has begun to speak, started, replaced or revived where needed.

    Raises Unusable, StartFailed, Silent.
    """
    deadline = time.monotonic() + instance.START_SECONDS
    spawned = 0
    while True:
        channel = instance.dial()
        if channel is not None:
            holder = instance.read_holder()
            if holder is not None and not acceptable(holder, keep):
                _retire(channel, holder)
                continue
            speaks = _speaks(channel)
            if speaks:
                return channel
            channel.close()
            if speaks is False:
                _remove(holder)
                continue
        lock = instance.take_lock()
        if lock is not None:
            if spawned == MAX_STARTS:
                raise instance.StartFailed(f"the agent's daemon keeps ending: {instance.last_words()}")
            spawned += 1
            try:
                instance.spawn(lock)
            except instance.EndedAtOnce:
                if spawned == MAX_STARTS:
                    raise
        elif time.monotonic() > deadline:
            _remove(instance.read_holder())
            deadline = time.monotonic() + instance.START_SECONDS
        else:
            time.sleep(0.01)  # somebody else is just starting it, or it is just going


def acceptable(holder: instance.Holder, keep: bool) -> bool:
    """Whether the running daemon serves us, or is to make room for the build that this relay comes from.

    A newer release is never replaced. `keep` is set on reconnecting: two controllers with builds of their
    own would otherwise throw out each other's daemon for ever.
    """
    if holder.build == instance.build_id() or _release(holder.release) > _release(version.VERSION):
        return True
    return keep and holder.major == instance.PROTOCOL_MAJOR


def _release(text: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in text.split(".")]


def _speaks(channel: _socket.socket) -> bool | None:
    """Wait for the daemon's first bytes. False when it stays silent, None when it has hung up."""
    waiting = select.poll()
    waiting.register(channel.fileno(), select.POLLIN)
    if not waiting.poll(HELLO_SECONDS * 1000):
        return False
    try:
        return True if channel.recv(1, _socket.MSG_PEEK) else None
    except OSError:
        return None


def _retire(channel: _socket.socket, holder: instance.Holder) -> None:
    """Ask the daemon to go, and return when its lock is free. Raises Silent."""
    deadline = time.monotonic() + RETIRE_SECONDS
    waiting = select.poll()
    waiting.register(channel.fileno(), select.POLLIN)
    try:
        channel.sendall(RETIRE)
        while waiting.poll(max(0.0, deadline - time.monotonic()) * 1000) and channel.recv(CHUNK):
            pass
    except OSError:
        pass  # gone already
    channel.close()
    lock = instance.wait_released(max(0.0, deadline - time.monotonic()))
    if lock is None:
        _remove(holder)
    else:
        os.close(lock)


def _remove(holder: instance.Holder | None) -> None:
    """End a daemon that does not answer. Runs have supervisors of their own and go on. Raises Silent."""
    if holder is None:
        raise Silent(f"another process holds {os.path.abspath(instance.LOCK)} and does not answer")
    from . import process

    if holder.boot_id != process.boot_id():
        raise Silent(
            f"{os.getcwd()} is in use by the daemon of another machine: "
            "set ENCAMP_HOME to a folder that machines do not share"
        )
    if holder.alive():
        os.kill(holder.pid, 9)
    lock = instance.wait_released(RETIRE_SECONDS)
    if lock is None:
        raise Silent(f"the agent's daemon (process {holder.pid}) neither answers nor dies")
    os.close(lock)


class _Flow:
    """One direction: at most one chunk in hand, so that whoever is slow slows the other side down."""

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self.target = target
        self.data = b""
        self.ended = False
        """The source has no more."""
        self.refused = False
        """The target takes no more."""

    def read(self) -> None:
        try:
            self.data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self.data = b""
        self.ended = not self.data

    def write(self) -> None:
        try:
            self.data = self.data[os.write(self.target, self.data) :]
        except BlockingIOError:
            pass
        except OSError:
            self.data, self.refused = b"", True


def relay(channel: _socket.socket, stdin: int = 0, stdout: int = 1) -> int:
    """Copy stdin to `channel` and `channel` to stdout until one side is gone. Returns the exit code.

    The end of stdin closes only that direction: answers on their way still arrive. The descriptors are
    made non-blocking, because one that blocks in a write would stop the other direction as well.
    """
    blocking = [(fd, os.get_blocking(fd)) for fd in (stdin, stdout)]
    try:
        for fd in (stdin, stdout, channel.fileno()):
            os.set_blocking(fd, False)
        return _copy(channel, _Flow(stdin, channel.fileno()), _Flow(channel.fileno(), stdout))
    finally:
        for fd, mode in blocking:
            os.set_blocking(fd, mode)


def _copy(channel: _socket.socket, up: _Flow, down: _Flow) -> int:
    leave_at = 0.0
    while True:
        if down.ended and not down.data:
            return 0 if up.ended else EXIT_ENDED
        if leave_at and time.monotonic() > leave_at:
            return 0
        if up.ended and not up.data and not leave_at:
            leave_at = time.monotonic() + LINGER_SECONDS
            try:
                channel.shutdown(_socket.SHUT_WR)
            except OSError:
                pass  # the daemon is gone: the other direction ends by itself
        wanted = {down.target: 0}  # always watched: an error on it says that nobody reads any more
        for flow in (up, down):
            if flow.data:
                wanted[flow.target] = wanted.get(flow.target, 0) | select.POLLOUT
            elif not flow.ended and not flow.refused:
                wanted[flow.source] = wanted.get(flow.source, 0) | select.POLLIN
        poll = select.poll()
        for fd, events in wanted.items():
            poll.register(fd, events)
        happened = dict(poll.poll(1000 if leave_at else None))
        if down.refused or happened.get(down.target, 0) & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            return 0
        for flow in (up, down):
            if flow.data and happened.get(flow.target):
                flow.write()
            elif not flow.data and not flow.ended and happened.get(flow.source):
                flow.read()

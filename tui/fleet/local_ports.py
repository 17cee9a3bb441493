"""Ports of this machine: taking one on loopback, and saying who has it when it is taken."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from .errors import UsageError

ADDRESS = "127.0.0.1"
"""Where ports are opened, and nowhere else: nobody on the network is to reach a host through us."""

_LISTENING = "0A"


def take(port: int) -> socket.socket:
    """A socket that listens on `port` of loopback; 0 is any free one. Raises OSError."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ADDRESS, port))
        listening.listen(100)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def take_exactly(port: int) -> socket.socket:
    """A socket that listens on `port`. Raises UsageError that says who has it, or why it cannot be had."""
    try:
        return take(port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"Port {port} of this machine is taken by {holder(port) or 'another program'}.",
                "End that, or name another port in front: 0:REMOTE takes one that is free.",
            ) from error
        raise UsageError(
            f"Port {port} of this machine cannot be opened: {error.strerror}.",
            "Ports below 1024 are for root: name another one in front, such as 8080:REMOTE.",
        ) from error


def holder(port: int) -> str | None:
    """Who listens on `port` here, as `name (pid N)`; None where that cannot be seen."""
    inodes = _listeners(port)
    if not inodes:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _has_socket(process, inodes):
            try:
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
            except OSError:
                return None
    return None


def _listeners(port: int) -> set[str]:
    """The sockets that listen on `port`, as links in /proc/PID/fd show them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTENING and fields[1].rpartition(":")[2] == f"{port:04X}":
                found.add(f"socket:[{fields[9]}]")
    return found


def _has_socket(process: Path, inodes: set[str]) -> bool:
    try:
        with os.scandir(process / "fd") as descriptors:
            return any(_link(descriptor.path) in inodes for descriptor in descriptors)
    except OSError:
        return False  # it has ended, or is another user's


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""

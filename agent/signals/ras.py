"""Asks NCCL itself how its ranks are: from 2.24 on it listens on the host for that, and knows of all of them.

The protocol is lines of text: a handshake with the version, how long it may wait for other ranks, and the
command; the answer ends with the connection. It comes from the user's processes, so it is bounded.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from typing import Iterable, List, Optional, Tuple

from .. import process

ADDRESS = ("localhost", 28028)
"""Where NCCL listens when its environment says nothing else."""

VARIABLE = b"NCCL_RAS_ADDR="

PROTOCOL = 2

LEG_SECONDS = 1
"""How long NCCL may wait for ranks that do not answer it; by itself it does for five seconds."""

ANSWER_SECONDS = 2.5
"""How long all of an answer may take."""

MAX_ANSWER = 64 * 1024
MAX_KEPT = 8 * 1024
"""Characters of an answer that are kept, the first of them: what is wrong stands in front of details."""


def status(pids: Iterable[Optional[int]]) -> str:
    """What NCCL says of the job whose ranks on this host are `pids`; empty where it says nothing.

    Blocks for `ANSWER_SECONDS` at most.
    """
    until = time.monotonic() + ANSWER_SECONDS
    for host, port in addresses(pids):
        answer = ask(host, port, until)
        if answer:
            return answer
    return ""


def addresses(pids: Iterable[Optional[int]]) -> List[Tuple[str, int]]:
    """Where the ranks' NCCL listens, as their environment has it, each place once."""
    found = []
    for pid in filter(None, pids):
        text = next(
            (entry[len(VARIABLE) :] for entry in process.environ(pid) if entry.startswith(VARIABLE)), b""
        )
        place = parse_address(text.decode("ascii", "replace")) if text else ADDRESS
        if place is not None and place not in found:
            found.append(place)
    return found


def parse_address(text: str) -> Optional[Tuple[str, int]]:
    """`localhost:28028` or `[::1]:28028` in its parts; None for what is neither this nor a number of IP.

    Names are not looked up: that may take longer than anybody wants to wait.
    """
    host, _, port = text.strip().rpartition(":")
    host = host.strip("[]")
    if not port.isdigit() or not 0 < int(port) < 65536:
        return None
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return None
    return host, int(port)


def ask(host: str, port: int, until: float) -> str:
    """The status that NCCL tells there by the monotonic time `until`, or what has come of it till then."""
    try:
        with socket.create_connection((host, port), max(0.1, until - time.monotonic())) as connection:
            first = _line(connection, f"CLIENT PROTOCOL {PROTOCOL}\n", until)
            if not first.upper().startswith(b"SERVER PROTOCOL "):
                return ""  # somebody else listens there
            if _line(connection, f"TIMEOUT {LEG_SECONDS}\n", until).strip().upper() != b"OK":
                return ""
            connection.sendall(b"VERBOSE STATUS\n")
            return _shown(_rest(connection, until))
    except (OSError, ValueError):
        return ""


def _line(connection: socket.socket, said: str, until: float) -> bytes:
    """Say something, and take the line that is the answer."""
    connection.settimeout(max(0.01, until - time.monotonic()))
    connection.sendall(said.encode("ascii"))
    line = b""
    while not line.endswith(b"\n") and len(line) < 256:
        connection.settimeout(max(0.01, until - time.monotonic()))
        piece = connection.recv(1)
        if not piece:
            break
        line += piece
    return line


def _rest(connection: socket.socket, until: float) -> bytes:
    data = b""
    while len(data) < MAX_ANSWER:
        left = until - time.monotonic()
        if left <= 0:
            break
        connection.settimeout(left)
        try:
            piece = connection.recv(16384)
        except OSError:
            break
        if not piece:
            break
        data += piece
    return data


def _shown(data: bytes) -> str:
    text = data.decode("utf-8", "replace")[:MAX_KEPT]
    return "".join(c for c in text if c.isprintable() or c == "\n").strip("\n")

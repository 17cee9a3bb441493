"""Connections whose bytes nobody acknowledges: what a rank has sent and its peer's kernel never confirmed."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
from typing import Dict, List, Set

from .. import process

MAX_LINES = 4096
MAX_FDS = 4096


def unacknowledged(pid: int) -> List[str]:
    """Peers, as `10.0.0.5:4123`, to whom bytes of the process are sent again and again."""
    own = _inodes(pid)
    found: List[str] = []
    for name, size in (("tcp", 4), ("tcp6", 16)):
        for fields in _table(f"/proc/{pid}/net/{name}"):
            queued = int(fields[4].split(":")[0], 16)
            tries = int(fields[6], 16)
            if queued and tries and fields[9] in own:
                found.append(_address(fields[2], size))
    return found


def listener(port: int) -> str:
    """Who listens on a TCP port of this host, as `process 4123 (redis)`; empty where that cannot be seen."""
    listening = {
        fields[9]
        for name in ("tcp", "tcp6")
        for fields in _table(f"/proc/net/{name}")
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port
    }
    for pid in process.pids() if listening else ():
        if listening & _inodes(pid):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:
                return f"process {pid} ({file.read().strip()})"
    return ""


def _inodes(pid: int) -> Set[str]:
    inodes = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")[:MAX_FDS]
    except OSError:
        return set()
    for name in names:
        try:
            match = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
        if match:
            inodes.add(match[1])
    return inodes


def _table(path: str) -> List[List[str]]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            lines = file.readlines(MAX_LINES * 160)[1:]
    except OSError:
        return []
    return [fields for fields in (line.split() for line in lines) if len(fields) > 9]


def _address(word: str, size: int) -> str:
    """The kernel's `0500000A:101B`: groups of four bytes in the machine's own order."""
    digits, port = word.split(":")
    packed = b"".join(int(digits[at : at + 8], 16).to_bytes(4, "little") for at in range(0, 2 * size, 8))
    address = str(ipaddress.ip_address(packed))
    if address.startswith("::ffff:"):
        address = socket.inet_ntoa(packed[-4:])
    return f"{address}:{int(port, 16)}"


def named(rank: int, peers: List[str]) -> List[str]:
    """`rank 3 -> 10.0.0.5:4123`, each peer once."""
    unique: Dict[str, None] = dict.fromkeys(peers)
    return [f"rank {rank} -> {peer}" for peer in list(unique)[:8]]

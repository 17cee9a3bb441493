"""Asks a rank's torch which collectives it has called: its own server answers on a socket in the rank's dir.

Threads in C++ answer, so they do so while the rank hangs, whatever holds the GIL. The server belongs to the
user's process: its answers are bounded and taken apart with care.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from ..diagnosis.evidence import Collective, Group

SOCKET = "flight.sock"

ANSWER_SECONDS = 2.0
"""How long an answer may take."""

MAX_ANSWER = 16 * 1024 * 1024
"""Bytes of an answer: of a longer record nothing is known."""

RECENT = 24
"""Entries a group that are kept, the newest."""

COUNT = re.compile(rb'"last_(?:enqueued|completed)_collective":\s{0,4}"?(\d{1,18})\b')

MAX_GROUPS = 32
MAX_NAME = 80


def ask(rank_dir: str, handler: str, seconds: float = ANSWER_SECONDS) -> Optional[bytes]:
    """The body of the answer of `handler`; None without a server, an answer in time, or one of bounded size.

    Blocks for `seconds` at most.
    """
    until = time.monotonic() + seconds
    try:
        folder = os.open(rank_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            # The path of a socket has at most 107 bytes, and that of the folder may have more.
            connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
            request = f"POST /handler/{handler} HTTP/1.0\r\nHost: rank\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(request.encode("ascii"))
            return _body(connection, until)
    except (OSError, ValueError):
        return None
    finally:
        os.close(folder)


def _body(connection: socket.socket, until: float) -> Optional[bytes]:
    data = bytearray()
    while len(data) <= MAX_ANSWER:
        left = until - time.monotonic()
        if left <= 0:
            return None
        connection.settimeout(left)
        piece = connection.recv(256 * 1024)
        if not piece:
            break
        data += piece
        head, gap, body = bytes(data[:8192]).partition(b"\r\n\r\n")
        if gap and b"content-length:" in head.lower():
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            if len(data) >= len(head) + 4 + length:
                break
    else:
        return None
    head, gap, body = bytes(data).partition(b"\r\n\r\n")
    return body if gap and b" 200 " in head.split(b"\r\n")[0] + b" " else None


def record(rank_dir: str) -> Optional[Tuple[Group, ...]]:
    """How far the rank is in each of its process groups; None when it keeps no record that can be read."""
    body = ask(rank_dir, "fr_trace_json")
    if body is None:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parse(found) if isinstance(found, dict) else None


def counts(rank_dir: str) -> Optional[Tuple[int, ...]]:
    """How far the rank is in its groups, as numbers that grow; None when nobody can say."""
    body = ask(rank_dir, "fr_trace_json")
    return None if body is None else tuple(int(number) for number in COUNT.findall(body)[: 2 * MAX_GROUPS])


def parse(found: Dict[str, Any]) -> Tuple[Group, ...]:
    """The groups in torch's flight record. What does not look like one is left out."""
    entries: Dict[str, List[Collective]] = {}
    names: Dict[str, Tuple[str, str]] = {}
    records = found.get("entries")
    for entry in records if isinstance(records, list) else []:
        if not isinstance(entry, dict):
            continue
        key = str(entry.get("pg_id"))[:MAX_NAME]
        group = entry.get("process_group")
        if isinstance(group, list) and len(group) >= 2:
            names[key] = (str(group[0])[:MAX_NAME], str(group[1])[:MAX_NAME])
        collective = _collective(entry)
        if collective is not None:
            entries.setdefault(key, []).append(collective)
    status = found.get("pg_status")
    configured = found.get("pg_config")
    groups = []
    for key, numbers in list((status if isinstance(status, dict) else {}).items())[:MAX_GROUPS]:
        if not isinstance(numbers, dict):
            continue
        name, description = names.get(key, (key, ""))
        recent = sorted(entries.get(key, ()), key=lambda entry: entry.created)[-RECENT:]
        enqueued = _int(numbers.get("last_enqueued_collective"))
        completed = _int(numbers.get("last_completed_collective"))
        members = _members(configured, name)
        groups.append(Group(name[:MAX_NAME], description, members, enqueued, completed, tuple(recent)))
    return tuple(groups)


def _collective(entry: Dict[str, Any]) -> Optional[Collective]:
    point_to_point = entry.get("is_p2p") is True
    sequence = _int(entry.get("p2p_seq_id" if point_to_point else "collective_seq_id"))
    created = entry.get("time_created_ns")
    name = entry.get("profiling_name")
    if not isinstance(name, str) or not isinstance(created, int) or abs(created) >= 2**63:
        return None
    retired = entry.get("retired") is True or entry.get("state") == "completed"
    return Collective(sequence, name[:MAX_NAME], _shape(entry), created / 1e9, retired)


def _shape(entry: Dict[str, Any]) -> str:
    """`10x20 float`, of several tensors the first and how many more."""
    sizes, types = entry.get("input_sizes"), entry.get("input_dtypes")
    if not isinstance(sizes, list) or not sizes or not isinstance(sizes[0], list):
        return ""
    text = "x".join(str(_int(size)) for size in sizes[0][:8]) or "a number"
    if isinstance(types, list) and types:
        text += f" {str(types[0]).lower()[:16]}"
    return text + (f" and {len(sizes) - 1} more" if len(sizes) > 1 else "")


def _members(configured: object, name: str) -> Tuple[int, ...]:
    config = configured.get(name) if isinstance(configured, dict) else None
    text = config.get("ranks") if isinstance(config, dict) else None
    if not isinstance(text, str):
        return ()
    words = text.strip("[] ").split(",")
    return tuple(int(word) for word in words[:16384] if word.strip().isdecimal())


def _int(value: object) -> int:
    """A number that torch writes as one or as a text; 0 for what is none, or below."""
    try:
        return min(max(0, int(str(value))), 2**62)
    except ValueError:
        return 0

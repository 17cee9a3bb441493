"""Files of one attempt on its host, whole or their ends, and which hosts an attempt was on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent import wire

from .errors import RequestRefused
from .host_files import HostFiles, Nonsense
from .members import Member, member_of, members
from .session import Session
from .store import RunView

MAX_SPEC = 1024 * 1024
"""Bytes of a spec.json that are read."""


@dataclass(frozen=True)
class Layout:
    """Which host has which ranks of an attempt: `nproc` each, in the order of `members`."""

    members: tuple[Member, ...]
    nproc: int
    world_size: int

    def own(self, node_rank: int) -> range:
        """The ranks of the host of that node rank."""
        return range(node_rank * self.nproc, (node_rank + 1) * self.nproc)


def newest(run: RunView, sessions: Sequence[Session]) -> Layout:
    """The layout of a run's newest attempt."""
    return Layout(tuple(members(run, sessions)), run.info.nproc_per_node, run.info.world_size)


async def earlier(run: str, attempt: int, sessions: Sequence[Session]) -> Layout:
    """The layout of an older attempt, by the first host that has it. Raises RequestRefused, HostError."""
    refusal = RequestRefused(
        "no-run", f"There is no attempt {attempt} of {run}.", "Without --attempt it is the newest."
    )
    for session in sessions:
        if not session.live:
            continue
        host = HostFiles(session, run)
        try:
            spec = await read_json(host, f"attempts/{attempt}/spec.json")
        except RequestRefused:
            continue
        try:
            resolved = spec["resolved"]
            nproc, world_size = int(resolved["nproc_per_node"]), int(resolved["world_size"])
            told = spec.get("placement")
            nodes = () if told is None else wire.from_json(wire.Placement, told).nodes
        except (wire.WireError, KeyError, TypeError, ValueError):
            raise Nonsense(session) from None
        if not (0 < nproc <= wire.MAX_ITEMS and len(nodes) <= wire.MAX_NODES):
            raise Nonsense(session)
        if not all(wire.HOST_NAME.match(node.name) for node in nodes):
            raise Nonsense(session)
        nodes = nodes or (wire.Node(session.name, session.view.host_id, "", ""),)
        return Layout(tuple(member_of(run, node, sessions) for node in nodes), nproc, world_size)
    raise refusal


async def read_json(host: HostFiles, path: str) -> dict[str, Any]:
    """The object in a file of the run. Raises RequestRefused, HostError."""
    try:
        value = json.loads(await read(host, path, 0, MAX_SPEC))
    except (ValueError, RecursionError):
        raise Nonsense(host.session) from None
    if not isinstance(value, dict):
        raise Nonsense(host.session)
    return value


async def read(host: HostFiles, path: str, offset: int, length: int) -> bytes:
    """Up to `length` bytes of a file of the run from `offset` on. Raises RequestRefused, HostError."""
    data = b""
    while len(data) < length:
        wanted = min(wire.MAX_CHUNK, length - len(data))
        piece = await host.read(path, offset + len(data), wanted)
        data += piece
        if len(piece) < wanted:
            break
    return data

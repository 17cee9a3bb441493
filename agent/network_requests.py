"""Requests about the network between hosts: what interfaces there are, listening, reaching others."""

from __future__ import annotations

import dataclasses
import socket
from typing import Tuple

from . import network, wire
from .actions import in_thread
from .services import Methods, Nothing, Result, Services
from .viewer import Viewer


@dataclasses.dataclass(frozen=True)
class Listen:
    """A listener for who knows the token; port 0 is one that the kernel chooses."""

    token: str
    address: str
    seconds: float
    port: int = 0


@dataclasses.dataclass(frozen=True)
class Unlisten:
    """The tokens of listeners."""

    tokens: Tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Peer:
    """A listener on another host, or on this one."""

    name: str
    address: str
    port: int
    token: str


@dataclasses.dataclass(frozen=True)
class ProbePeers:
    """Whom to try, and for how long to send to those who are reached."""

    peers: Tuple[Peer, ...]
    throughput_seconds: float = 0.0


async def describe(services: Services, viewer: Viewer, params: Nothing) -> Result:
    """See `network.describe`."""
    del services, viewer, params
    found: Result = await in_thread(network.describe)
    return found


async def listen(services: Services, viewer: Viewer, params: Listen) -> Result:
    """See `network.Meter.listen`."""
    del viewer
    _check(params.address, params.port, params.token, lowest=0)
    port = await services.meter.listen(params.token, params.address, params.port, params.seconds)
    return {"port": port}


async def unlisten(services: Services, viewer: Viewer, params: Unlisten) -> Result:
    """See `network.Meter.unlisten`."""
    del viewer
    await services.meter.unlisten(params.tokens)
    return {}


async def probe_peers(services: Services, viewer: Viewer, params: ProbePeers) -> Result:
    """See `network.Meter.probe`."""
    del viewer
    if len(params.peers) > network.MAX_PEERS:
        raise wire.WireError(f"{len(params.peers)} peers are too many: {network.MAX_PEERS} are allowed")
    for peer in params.peers:
        _check(peer.address, peer.port, peer.token, lowest=1)
    peers = [network.Peer(*dataclasses.astuple(peer)) for peer in params.peers]
    return {"peers": await services.meter.probe(peers, params.throughput_seconds)}


def _check(address: str, port: int, token: str, lowest: int) -> None:
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except (OSError, ValueError) as error:
        raise wire.WireError(f"{address[:80]!r} is not an address") from error
    if not any(packed):
        raise wire.WireError(f"{address} is no address of one interface")
    if not lowest <= port <= 65535:
        raise wire.WireError(f"{port} is not a port")
    if not (token.isascii() and network.MIN_TOKEN <= len(token) <= network.MAX_TOKEN):
        raise wire.WireError(f"a token has {network.MIN_TOKEN} to {network.MAX_TOKEN} ASCII characters")


METHODS: Methods = {
    "network": (Nothing, describe),
    "listen": (Listen, listen),
    "unlisten": (Unlisten, unlisten),
    "probe_peers": (ProbePeers, probe_peers),
}

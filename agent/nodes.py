"""A run on several hosts: what torchrun is told on each of them, and what of a placement is refused.

The rendezvous is a static one: it keeps to the node ranks that we give. (c10d numbers the nodes by their
addresses.) Node rank 0 listens, and the others connect to it, for as long as `RENDEZVOUS_SECONDS`.
"""

from __future__ import annotations

import errno
import re
import socket
from typing import Dict, List

from . import wire
from .errors import RunError
from .signals import sockets

MAX_WORLD = 16384

RENDEZVOUS_SECONDS = 120
"""How long a node waits for the others: they are started together, but one may import torch slowly."""

_ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z.-]*\Z|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(%[0-9A-Za-z._-]+)?\Z")
"""A name, an IPv4 or an IPv6 address."""
_INTERFACE = re.compile(r"([^\s/,=^-][^\s/,]{0,14})?\Z")
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,200}\Z")


def check(placement: wire.Placement, nproc: int) -> None:
    """Check a placement, with `nproc` ranks a host. Raises RunError `bad-spec` or `port-in-use`."""
    count = len(placement.nodes)
    bad = ""
    if not count or count * nproc > MAX_WORLD:
        bad = f"{count} hosts with {nproc} ranks each"
    elif not 0 <= placement.node_rank < count:
        bad = f"node rank {placement.node_rank} of {count}"
    elif not 0 < placement.rendezvous_port < 65536:
        bad = f"port {placement.rendezvous_port}"
    elif not _ID.match(placement.rendezvous_id):
        bad = f"rendezvous id {placement.rendezvous_id[:80]!r}"
    for address in (placement.rendezvous_address, *(node.address for node in placement.nodes)):
        if not _ADDRESS.match(address):
            bad = f"address {address[:80]!r}"
    for node in placement.nodes:
        if not _INTERFACE.match(node.interface):
            bad = f"interface {node.interface[:80]!r}"
    if bad:
        raise RunError("bad-spec", f"the placement is not possible: {bad}", "see [network] in the profile")
    if count > 1 and placement.node_rank == 0 and not _can_listen(placement.rendezvous_port):
        raise RunError(
            "port-in-use",
            f"port {placement.rendezvous_port} of this host is in use{_by(placement.rendezvous_port)}",
            "launch again for another one, or see rendezvous_port in the profile",
        )


def _can_listen(port: int) -> bool:
    """Whether nobody listens on a port. Connections of a former attempt that linger there do not matter."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
    return True


def _by(port: int) -> str:
    who = sockets.listener(port)
    return f" by {who}" if who else ""


def torchrun_argv(placement: wire.Placement) -> List[str]:
    """The options that let this node of torchrun find the others."""
    address = placement.rendezvous_address
    host = f"[{address}]" if ":" in address else address
    return [
        "--node-rank", str(placement.node_rank),
        "--rdzv-backend", "static",
        "--rdzv-endpoint", f"{host}:{placement.rendezvous_port}",
        "--rdzv-id", placement.rendezvous_id,
        "--rdzv-conf", f"timeout={RENDEZVOUS_SECONDS}",
        "--local-addr", placement.nodes[placement.node_rank].address,
    ]  # fmt: skip


def interface_env(placement: wire.Placement) -> Dict[str, str]:
    """The variables that keep gloo and NCCL to the interface by which the hosts reach each other."""
    interface = placement.nodes[placement.node_rank].interface
    if not interface:
        return {}
    # NCCL takes a name as a prefix, eth1 also for eth10, unless told not to.
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}

"""Where the ranks of a run meet: one address and interface for each host, out of what was measured.

Pure functions. The order of preference: what a person has configured, the network that the hosts share,
private addresses, the faster and then the nearer one. The default route counts last: it leads to the
internet, not to the other hosts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from agent import wire

from .apart import HostsApart, why_apart
from .errors import EncampError, UsageError
from .matrix import Candidate, HostNetwork, Matrix, Probe


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where all ranks meet first: on the host of node rank 0."""

    address: str
    port: int


def choose(matrix: Matrix, *, rendezvous_host: str = "") -> list[wire.Node]:
    """The hosts by node rank: in the order of the matrix, with `rendezvous_host` before all others.

    Each has an address that every other one reaches. Raises HostsApart, and UsageError for hosts that are
    one, and for a rendezvous host that is none of them.
    """
    names = [host.name for host in matrix.hosts]
    if rendezvous_host and rendezvous_host not in names:
        raise UsageError(
            f"The rendezvous host {rendezvous_host} is none of the hosts of this launch: {', '.join(names)}.",
            "Launch on it as well, or change rendezvous_host of the profile's [network].",
        )
    refuse_twins((host.name, host.host_id) for host in matrix.hosts)
    usable = {host.name: _usable(matrix, host) for host in matrix.hosts}
    if not all(usable.values()):
        raise why_apart(matrix, [name for name in names if not usable[name]])
    nodes = []
    for host in sorted(matrix.hosts, key=lambda host: host.name != rendezvous_host):
        others = [each for name in names if name != host.name for each in usable[name]]
        best = min(usable[host.name], key=lambda each: _rank(matrix, host.name, each, others))
        nodes.append(wire.Node(host.name, host.host_id, best.address, best.interface))
    return nodes


def rendezvous(
    matrix: Matrix, lead: wire.Node, free_port: int, *, port: int = 0, port_may_be_held: bool = False
) -> Rendezvous:
    """Where the ranks meet, on the host of node rank 0.

    `port` is the profile's; without one it is one of the host's open ports, or else `free_port`, which the
    host itself has offered. With `port_may_be_held`, `port` is the run's own until it is stopped, and is not
    to be tried before. Raises HostsApart, and EncampError when nothing can listen there.
    """
    host = matrix.host(lead.name)
    address = host.peer_address or lead.address
    tried = [each for each in matrix.rendezvous if (each.target, each.address) == (lead.name, address)]
    if host.rendezvous_error and port and port_may_be_held:
        return Rendezvous(address, port)
    if host.rendezvous_error:
        where = f"{address}:{tried[0].port}" if tried else address
        raise EncampError(
            f"{lead.name} cannot be the rendezvous at {where}: {host.rendezvous_error}.",
            "Change rendezvous_port of the profile's [network], or end what uses the port.",
        )
    failed = [each for each in tried if not each.ok]
    if failed:
        raise _no_rendezvous(host, failed)
    if port or host.ports:
        port = port or tried[0].port
    return Rendezvous(address, port or free_port)


def refuse_twins(hosts: Iterable[tuple[str, str]]) -> None:
    """Raise UsageError when two of the hosts, each a name and a host id, are one machine."""
    known: dict[str, str] = {}
    for name, host_id in hosts:
        other = known.setdefault(host_id, name) if host_id else name
        if other != name:
            raise UsageError(
                f"{other} and {name} are two names of one machine.",
                "Name it once: all of its GPUs are used anyway.",
            )


def _usable(matrix: Matrix, host: HostNetwork) -> list[Candidate]:
    """The candidates that all others reach, and that they will still reach at another port."""
    return [
        each
        for each in host.candidates
        if all(probe.ok and lasting(host, probe) for probe in matrix.at(each, host.name))
    ]


def lasting(host: HostNetwork, probe: Probe) -> bool:
    """Whether it was no mere luck that the kernel has chosen one of the open ports."""
    return host.kernel_ports_open or host.ports is None or not host.ports[0] <= probe.port <= host.ports[1]


def _rank(matrix: Matrix, host: str, candidate: Candidate, others: list[Candidate]) -> tuple[object, ...]:
    """The smaller, the better. Speeds and times are compared roughly: they are never twice the same."""
    probes = matrix.at(candidate, host)
    network = _network(candidate)
    neighbours = sum(each.address != candidate.address and _network(each) == network for each in others)
    measured = [probe.mbit for probe in probes if probe.mbit is not None]
    speed = min(measured) if measured else candidate.mbit or 0
    times = [probe.rtt_ms for probe in probes if probe.rtt_ms is not None]
    return (
        not candidate.configured,
        -neighbours,
        ipaddress.ip_address(candidate.address).is_global,
        -int(speed).bit_length(),
        round(max(times, default=0)),
        candidate.default,
        candidate.interface,
    )


def _network(candidate: Candidate) -> object:
    return ipaddress.ip_interface(f"{candidate.address}/{candidate.prefix}").network


def _no_rendezvous(host: HostNetwork, failed: list[Probe]) -> HostsApart:
    lines = []
    for probe in failed:
        who = "itself" if probe.source == host.name else host.name
        where = f"{probe.address}:{probe.port}"
        lines.append(f"{probe.source} cannot reach {who} at {where} for the rendezvous: {probe.error}.")
    hint = f"Change `address` and `ports` of {host.name} in hosts.toml, or take another rendezvous host."
    if any(probe.source == host.name for probe in failed):
        hint += f" {host.name} itself has to reach the address as well."
    return HostsApart("\n".join(lines), hint, [(probe.source, probe.target) for probe in failed])

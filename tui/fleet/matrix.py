"""What a measurement between hosts has found, as data: their addresses, and every attempt to reach them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """An address of a host at which the others may reach it. `mbit` is what its interface says of itself."""

    interface: str
    address: str
    prefix: int
    kind: str
    mbit: int | None
    default: bool
    """The default route goes by its interface."""
    configured: bool
    """A person has said that it is to be this one."""


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """What is known of one host's network. `peer_address` and `ports` are as hosts.toml has them."""

    name: str
    host_id: str
    boot_id: str
    candidates: tuple[Candidate, ...]
    local_ports: tuple[int, int]
    """The first and the last port that the kernel chooses."""
    peer_address: str | None = None
    ports: tuple[int, int] | None = None
    rendezvous_error: str = ""
    """Why nothing can listen there for the rendezvous."""

    @property
    def kernel_ports_open(self) -> bool:
        """Whether the ports that the kernel chooses are among those that are said to be open."""
        if self.ports is None:
            return True
        return self.ports[0] <= self.local_ports[0] and self.local_ports[1] <= self.ports[1]


@dataclass(frozen=True, slots=True)
class Probe:
    """One attempt to reach `target` from `source`. `rtt_ms` and `mbit` are None where not measured."""

    source: str
    target: str
    interface: str
    """Of the target."""
    address: str
    port: int
    ok: bool
    error: str = ""
    rtt_ms: float | None = None
    mbit: float | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """Every pair of hosts in both directions, at every candidate of the second.

    `rendezvous` is about the place where the ranks meet first, of hosts for which one was configured: these
    try it themselves as well.
    """

    hosts: tuple[HostNetwork, ...]
    probes: tuple[Probe, ...]
    rendezvous: tuple[Probe, ...] = ()

    def host(self, name: str) -> HostNetwork:
        """The host of that name."""
        return next(host for host in self.hosts if host.name == name)

    def at(self, candidate: Candidate, target: str) -> list[Probe]:
        """The attempts of all others to reach a candidate of `target`."""
        return [
            probe for probe in self.probes if (probe.target, probe.address) == (target, candidate.address)
        ]

"""Why hosts cannot train together: the pairs that do not reach each other, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .errors import EncampError
from .host_fields import format_ports
from .matrix import HostNetwork, Matrix, Probe

MAX_LINES = 8
"""Pairs that are told about."""

CHOICES = (
    "Use hosts of one cluster network, or join them by a VPN such as WireGuard or Tailscale and give each its"
    ' interface in hosts.toml (interface = "wg0"), or launch on one host.'
)


class HostsApart(EncampError):
    """Hosts of a launch do not reach each other. `pairs` are who does not reach whom."""

    def __init__(self, message: str, hint: str, pairs: Iterable[tuple[str, str]]) -> None:
        super().__init__(message, hint)
        self.pairs = tuple(pairs)


def why_apart(matrix: Matrix, unreached: Sequence[str]) -> HostsApart:
    """The refusal for hosts that have no address that all others reach."""
    lines: list[str] = []
    pairs: list[tuple[str, str]] = []
    hints: dict[str, None] = {}
    for host in (matrix.host(name) for name in unreached):
        if not host.candidates:
            lines.append(f"{host.name} has no network interface by which others could reach it.")
            pairs += [(other.name, host.name) for other in matrix.hosts if other.name != host.name]
            continue
        sources = _sources(matrix, host)
        lines += [_sentence(matrix, source, host) for source in sources]
        pairs += [(source, host.name) for source in sources]
        hints |= dict.fromkeys(_about_machines(matrix, source, host) for source in sources)
        for text, hint in _about_ports(matrix, host, sources):
            lines.append(text)
            hints[hint] = None
    left = len(lines) - MAX_LINES
    if left > 1:
        lines[MAX_LINES:] = [f"And {left} more like these."]
    return HostsApart("\n".join(lines), "\n  ".join([*filter(None, hints), CHOICES]), pairs)


def _sources(matrix: Matrix, host: HostNetwork) -> list[str]:
    """Who does not reach the address of a host that most of the others reach."""
    best = max(host.candidates, key=lambda each: sum(probe.ok for probe in matrix.at(each, host.name)))
    failed = [probe.source for probe in matrix.at(best, host.name) if not probe.ok]
    # All were reached once, by luck: see placement.lasting.
    return failed or [probe.source for probe in matrix.at(best, host.name)]


def _sentence(matrix: Matrix, source: str, host: HostNetwork) -> str:
    tried = [probe for probe in matrix.probes if (probe.source, probe.target) == (source, host.name)]
    failed = [probe for probe in tried if not probe.ok]
    reasons = list(dict.fromkeys(probe.error for probe in failed))
    if not failed:
        return f"{source} does not reach every port of {host.name}."
    if len(reasons) == 1:
        return f"{source} cannot reach {host.name}: {reasons[0]} (tried {', '.join(map(_where, failed))})."
    each = ", ".join(f"{_where(probe)}: {probe.error}" for probe in failed)
    return f"{source} cannot reach {host.name} (tried {each})."


def _where(probe: Probe) -> str:
    return f"{probe.address} on {probe.interface}"


def _about_machines(matrix: Matrix, source: str, host: HostNetwork) -> str:
    """A nearer choice for two containers of one machine; nothing for others."""
    if not host.boot_id or matrix.host(source).boot_id != host.boot_id:
        return ""
    return (
        f"{' and '.join(sorted((source, host.name)))} are on one machine: put both containers in one network."
    )


def _about_ports(matrix: Matrix, host: HostNetwork, sources: Sequence[str]) -> Iterable[tuple[str, str]]:
    """What is to be said when the ports of a host that are said to be open are indeed reached."""
    met = [
        each for each in matrix.rendezvous if each.target == host.name and each.source in sources and each.ok
    ]
    if not met or host.ports is None:
        return
    port, address = met[0].port, met[0].address
    if not host.kernel_ports_open:
        low, high = host.ports
        there, opened = format_ports(host.local_ports), format_ports(host.ports)
        yield (
            f"Port {port} of {host.name} is reached, but NCCL and gloo listen on ports that the kernel"
            f" chooses: there {there}, of which only {opened} are open.",
            f"Let the kernel of {host.name} choose out of the open ones"
            f' (sysctl net.ipv4.ip_local_port_range="{low} {high}"; docker run takes it as --sysctl).',
        )
    if address not in [each.address for each in host.candidates]:
        own = ", ".join(each.address for each in host.candidates)
        yield (
            f"Port {port} of {host.name} is reached at {address}, but NCCL and gloo tell the others the"
            f" address of the interface, {own}.",
            f"Mapped ports are not enough: {host.name} needs an interface whose address the others reach.",
        )

"""The addresses at which other hosts may reach a host, out of all that its agent tells of its network."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Optional

from .errors import UsageError
from .matrix import Candidate
from .sanitize import printable

MAX_CANDIDATES = 6


@dataclass(frozen=True)
class Interface:
    """An address of an interface, as the agent tells it."""

    name: str
    address: str
    family: int
    prefix: int
    up: bool
    kind: str
    speed_mbit: Optional[int] = None  # noqa: UP045 (read at run time by wire.from_json, as all of these)


@dataclass(frozen=True)
class Described:
    """What the agent tells of its host's network."""

    interfaces: tuple[Interface, ...]
    local_ports: tuple[int, ...]
    default_interface: Optional[str] = None  # noqa: UP045


def candidates(
    host: str, found: Described, interface: str, peer_address: str | None
) -> tuple[Candidate, ...]:
    """The addresses to try, the most likely ones first. Raises UsageError when `interface` is not there."""
    first: dict[str, Interface] = {}
    for each in sorted(found.interfaces, key=lambda each: each.family):  # IPv4 first, as NCCL and gloo do
        if each.up and (each.name == interface or not ipaddress.ip_address(each.address).is_link_local):
            first.setdefault(each.name, each)
    if interface and interface not in first:
        there = ", ".join(f"{printable(each.name)} ({each.address})" for each in first.values()) or "none"
        raise UsageError(
            f"There is no network interface {interface} that is up and has an address.",
            f"{host} has: {there}. Change `interface` in hosts.toml, or in the profile's [network].",
        )
    if not interface and peer_address:
        named = ipaddress.ip_address(peer_address)
        interface = next(
            (each.name for each in first.values() if ipaddress.ip_address(each.address) == named), ""
        )
    if interface:
        chosen = [first[interface]]
    else:
        everything = list(first.values())
        # Docker's own bridge leads nowhere; one over which the machine itself goes out is as good as a card.
        chosen = [
            each for each in everything if each.kind != "bridge" or each.name == found.default_interface
        ]
        chosen = chosen or everything
        chosen.sort(key=lambda each: each.name != found.default_interface)
    return tuple(
        Candidate(
            printable(each.name),
            str(ipaddress.ip_address(each.address)),
            each.prefix,
            each.kind,
            each.speed_mbit,
            each.name == found.default_interface,
            bool(interface),
        )
        for each in chosen[:MAX_CANDIDATES]
    )

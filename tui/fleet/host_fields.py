"""What may be written for a host, field by field, in hosts.toml and on the command line."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any

from .errors import UsageError
from .target import check_hostname, check_jump, check_port, check_user

HOST_PATH = r"(/|~/)[A-Za-z0-9_./ +=:@%,-]*"
"""Paths on a host that may be named: what stays the same between double quotes in any shell."""

_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,14}\Z")
_PORTS = re.compile(r"(\d{1,5})(?: ?- ?(\d{1,5}))?\Z", re.ASCII)


def check_field(field: str, value: object, called: str) -> Any:
    """The value of a field of Host from what a person wrote for it. Raises UsageError, naming it `called`."""
    expected, check = CHECKS[field]
    try:
        return check(value)
    except UsageError as error:
        raise UsageError(f"{called}: {error.message}", error.hint) from error
    except (TypeError, ValueError) as error:
        raise UsageError(f"{called} is {value!r}.", f"It is {expected}.") from error


def format_ports(ports: tuple[int, int]) -> str:
    """`20000-20100`, as it is written in hosts.toml."""
    return f"{ports[0]}-{ports[1]}"


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError
    return str(value)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(_text(entry) for entry in value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return bool(value)


def _port(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return check_port(str(value))


def _host_path(value: object) -> str:
    path = _text(value)
    if not re.fullmatch(HOST_PATH, path):
        raise ValueError
    return path


def _interface(value: object) -> str:
    name = _text(value)
    if not _INTERFACE.match(name):
        raise ValueError
    return name


def _ip_address(value: object) -> str:
    address = ipaddress.ip_address(_text(value))
    if (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or getattr(address, "scope_id", None)
    ):
        raise ValueError
    return str(address)


def _ports(value: object) -> tuple[int, int]:
    match = _PORTS.match(_text(value))
    if match is None:
        raise ValueError
    low, high = int(match[1]), int(match[2] or match[1])
    if not 1 <= low <= high <= 65535:
        raise ValueError
    return low, high


KEYS = {"peer_address": "address"}
"""Fields of Host that hosts.toml calls otherwise."""

CHECKS: dict[str, tuple[str, Callable[[object], object]]] = {
    "hostname": ("a host name or address", lambda value: check_hostname(_text(value))),
    "port": ("a number from 1 to 65535", _port),
    "user": ("a user name", lambda value: check_user(_text(value))),
    "identity_files": ("a list of paths", _texts),
    "identities_only": ("true or false", _flag),
    "proxy_jump": ("a list of hosts as ssh -J takes it", lambda value: check_jump(_text(value))),
    "home": (
        "an absolute path on the host, of letters, digits and ./_-+=:@%, or starting with ~/",
        _host_path,
    ),
    "python": (
        "an absolute path on the host, of letters, digits and ./_-+=:@%, or starting with ~/",
        _host_path,
    ),
    "interface": ("the name of a network interface on the host, such as eth1", _interface),
    "peer_address": ("an IP address by which other hosts reach this one, such as 10.0.0.5", _ip_address),
    "ports": ("the first and the last open port, such as 20000-20100", _ports),
}
"""Field of Host -> what it is, and a function that returns its value or raises ValueError or TypeError."""

"""Finds ports of TCP that nobody listens on."""

from __future__ import annotations

import errno
import random
import socket

PORTS = range(15000, 32768)
"""Where a port for the rendezvous is looked for: below those that the kernel gives to connections."""


def free_port() -> int:
    """A TCP port that nobody listens on, at random, so that attempts that start together do not meet."""
    for port in random.sample(PORTS, 64):
        if _is_free(port):
            return port
    with socket.socket() as any_port:
        any_port.bind(("", 0))
        return int(any_port.getsockname()[1])


def _is_free(port: int) -> bool:
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as sock:
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address, port))
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a host without IPv6
                return False
    return True

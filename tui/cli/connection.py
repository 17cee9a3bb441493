"""What commands need to reach hosts: the inventory, the sessions, and live connections with some hosts."""

from __future__ import annotations

import argparse
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from ..fleet import memory
from ..fleet.errors import UsageError
from ..fleet.fleet import Fleet
from ..fleet.hosts import Host
from ..fleet.parallel import everywhere
from ..fleet.session import Session
from ..fleet.store import Store
from .hosts import inventory
from .prompts import prompts

CONNECT_SECONDS = 180.0
"""How long the first connection to a host may take, the user's answers to its questions included."""


def known_hosts(names: Iterable[str] = ()) -> list[Host]:
    """The hosts of these names, or all. Raises UsageError for an unknown one, and when there are none."""
    file = inventory()
    hosts = [file.get(name) for name in dict.fromkeys(names)] or file.load()
    if not hosts:
        raise UsageError(
            "There are no hosts yet.", 'Add one: encamp hosts add "ssh -p 20544 root@203.0.113.7"'
        )
    return hosts


def host_names(given: Sequence[str]) -> list[str]:
    """The hosts that `--on a,b --on c` means, in this order. Raises UsageError when one is named twice."""
    names = [name.strip() for value in given for name in value.split(",")]
    if not all(names):
        raise UsageError(
            f"--on {','.join(given)} names an empty host.", "Write them like this: --on vast-a,vast-b"
        )
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is named twice with --on.", "A run has one part on each host.")
    return names


def quiet_logging() -> None:
    """Keep what sessions log off the terminal: what the user is to know is said by the command or the app."""
    logging.getLogger().addHandler(logging.NullHandler())


@asynccontextmanager
async def open_fleet(args: argparse.Namespace, hosts: Iterable[Host]) -> AsyncIterator[Fleet]:
    """Sessions with `hosts` for the body, which connect in the background."""
    quiet_logging()
    fleet = Fleet(inventory(), Store(), prompts(accept_new_host_key=args.accept_new_host_key))
    try:
        for host in hosts:
            fleet.add(host)
        yield fleet
    finally:
        for session in fleet.sessions():
            if session.view.ready:
                memory.remember(session.view)
        await fleet.close()


@asynccontextmanager
async def open_host(args: argparse.Namespace, name: str) -> AsyncIterator[Session]:
    """A live session with one host. Raises HostError when the first attempt to connect fails."""
    async with open_fleet(args, known_hosts([name])) as fleet:
        session = fleet.session(name)
        await session.connected(CONNECT_SECONDS, patient=False)
        yield session


@asynccontextmanager
async def open_hosts(args: argparse.Namespace, names: Sequence[str]) -> AsyncIterator[list[Session]]:
    """Live sessions with these hosts. Raises HostsFailed naming those that cannot be reached."""
    async with open_fleet(args, known_hosts(names)) as fleet:
        if len(names) == 1:
            await fleet.session(names[0]).connected(CONNECT_SECONDS, patient=False)
        else:

            async def connect(session: Session) -> None:
                await session.connected(CONNECT_SECONDS, patient=False)

            (await everywhere(fleet.sessions(), connect)).results()
        yield fleet.sessions()

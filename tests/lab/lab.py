"""A lab: its network and hosts, from the first to their end."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from ssh.sshd import keygen

from . import cleanup
from .host import LabHost
from .names import new_name
from .network import Network
from .options import HostOptions
from .tools import refuse as raise_impossible


class Lab:
    """Hosts on one switch. A context manager; `refuse` is called with what this machine cannot do."""

    def __init__(self, refuse: Callable[[str], NoReturn] = raise_impossible) -> None:
        self.name = new_name()
        self.key = self.name.folder / "id_ed25519"
        """The private key that all hosts let in."""
        self.hosts: dict[str, LabHost] = {}
        self._refuse = refuse
        self._network = Network(self.name)

    def __enter__(self) -> Lab:
        cleanup.remove_orphans()
        try:
            self.name.folder.mkdir(mode=0o755)
            keygen(self.key)
            self._network.create()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def controller(self) -> str:
        """The address of whoever drives the lab: this machine."""
        return self._network.controller

    def add(self, name: str = "", **options: object) -> LabHost:
        """Rent a host and start it; see `HostOptions`. Without a name it is called `h1`, `h2` and so on."""
        name = name or f"h{len(self.hosts) + 1}"
        assert name not in self.hosts, f"there is a host {name}"
        host = LabHost(
            name,
            f"{self.name}-{name}",
            self.name.folder / name,
            self._network,
            HostOptions(**options),  # type: ignore[arg-type]
            self.key,
            self._refuse,
        )
        self.hosts[name] = host
        host.power_on()
        return host

    def up(self, count: int, **options: object) -> list[LabHost]:
        """Start so many hosts, all alike."""
        return [self.add("", **options) for _ in range(count)]

    def cut(self, one: LabHost, other: LabHost | None = None) -> None:
        """Let nothing pass between two hosts, or between a host and the controller; all else goes on."""
        self._network.cut(one.address, other.address if other else self.controller)

    def mend(self, one: LabHost | None = None) -> None:
        """Undo the cuts of a host, or all."""
        self._network.mend(lambda pair: one is None or one.address in pair)

    def close(self) -> None:
        """Remove everything."""
        try:
            cleanup.remove(self.name)
        finally:
            for host in self.hosts.values():
                host.release()

"""What the screens need of the fleet, so that they can be driven by the real one or by a test's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .fleet.hosts import Host, Inventory
from .fleet.prompts import Prompts
from .fleet.store import Store

if TYPE_CHECKING:
    from .fleet.session import Session


class FleetPort(Protocol):
    """All hosts. Everything that is shown comes out of `store`."""

    inventory: Inventory
    store: Store
    prompts: Prompts

    def add(self, host: Host) -> Session:
        """Begin to connect to a host."""
        ...

    async def remove(self, name: str) -> None:
        """Disconnect from a host; what runs there goes on."""
        ...

    def session(self, name: str) -> Session:
        """The connection to a host. Raises UsageError."""
        ...

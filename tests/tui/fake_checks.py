"""What a fake session answers when its host is checked: facts that fit the feed's host, and a network."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fakes.checks import answer

if TYPE_CHECKING:
    from feed import FakeHost


class Checked:
    """The requests of a check. `check_answer` replaces what the feed's host would say of itself."""

    name: str
    check_answer: dict[str, Any] | None = None
    clock_ahead: float = 0.0
    """Seconds."""
    cut_off = False
    """The host reaches no other."""
    apart_ms = 0.2

    def fake_host(self) -> FakeHost:
        """The host of the feed."""
        raise NotImplementedError

    def _ping(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"time": time.time() + self.clock_ahead}

    def _check(self, params: dict[str, Any]) -> dict[str, Any]:
        if self.check_answer is not None:
            return self.check_answer
        host = self.fake_host()
        reply = answer(
            host.gpus, cpu={"logical_cores": host.cores, "affinity": host.cores, "usable": host.cores}
        )
        for gpu in reply["gpu"]["gpus"]:
            gpu["name"] = host.model
        return reply

    def _network(self, params: dict[str, Any]) -> dict[str, Any]:
        interface = {
            "name": "eth0",
            "address": f"10.0.0.{self.fake_host().seed}",
            "family": 4,
            "prefix": 24,
            "mtu": 1500,
            "speed_mbit": 10_000,
            "up": True,
            "kind": "ethernet",
        }
        return {"interfaces": [interface], "default_interface": "eth0", "local_ports": [32768, 60999]}

    def _listen(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"port": params["port"] or 40_000}

    def _unlisten(self, params: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _probe_peers(self, params: dict[str, Any]) -> dict[str, Any]:
        outcome = {
            "ok": not self.cut_off,
            "error": "no route to host" if self.cut_off else "",
            "rtt_ms": None if self.cut_off else self.apart_ms,
            "mbit": 9400.0 if params["throughput_seconds"] and not self.cut_off else None,
        }
        return {"peers": [outcome for _ in params["peers"]]}

"""A fleet without connections for the app: its hosts are a feed's, its sessions answer as an agent would."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fake_checks import Checked
from fake_stalls import healthy
from feed import FakeHost, Feed

from agent import browse, wire
from agent.errors import RunError
from tui.fleet.errors import HostUnfit, RequestRefused, Unreachable, UsageError
from tui.fleet.hosts import Host, Inventory
from tui.fleet.prompts import NoPrompts, Prompts
from tui.fleet.store import HostView, Link, Store

LOG = "".join(
    f"12:{minute:02d}:{second:02d} step {minute * 60 + second} loss {3.1 - minute / 30:.3f} tok/s 411 920\n"
    for minute in range(10)
    for second in range(60)
).encode()


class FakeSession(Checked):
    """Answers from the feed, and notes what was asked."""

    def __init__(self, fleet: FakeFleet, host: Host) -> None:
        self.fleet = fleet
        self.host = host
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.retries = 0
        self.refuse: dict[str, RequestRefused] = {}
        """Methods that are refused, and how."""
        self.past: list[wire.Record] = []
        """What every rank reported before anybody looked."""
        self.recalled = 0
        """How often that was asked for, which changes nothing and is not in `asked`."""
        self.checkpoints: list[int] = []
        """Steps of the complete checkpoints of each run there."""
        self.packages: dict[str, str] = {}
        """What its Python with torch has besides."""
        self.probing: asyncio.Event | None = None
        """While set, what the Pythons have is not known before it."""
        self.files = fleet.folder / "runs-of" / host.name
        """The folder of every run there."""
        self.held: asyncio.Event | None = None
        """While set, answers wait for it."""

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def store(self) -> Store:
        return self.fleet.store

    @property
    def view(self) -> HostView:
        return self.fleet.store.hosts[self.host.name]

    @property
    def live(self) -> bool:
        return self.view.link is Link.LIVE

    def retry_now(self) -> None:
        self.retries += 1

    def check(self) -> None:
        pass

    async def connected(self, timeout: float | None = None) -> None:
        if not self.live:
            raise Unreachable(f"{self.name} is not connected.")

    async def request(self, method: str, params: Mapping[str, Any], timeout: float = 30.0) -> dict[str, Any]:
        params = json.loads(json.dumps(params))  # as the wire would carry it
        if method not in ("progress", "probe", "ping", "checkpoints"):
            self.asked.append((method, params))
        await asyncio.sleep(0)
        held = self.probing if method == "probe" else self.held
        if held is not None:
            await held.wait()
        if not self.live:
            raise Unreachable(f"{self.name} is not connected.")
        if method in self.refuse:
            raise self.refuse[method]
        answer: dict[str, Any] = json.loads(json.dumps(getattr(self, f"_{method}")(params)))
        return answer

    def fake_host(self) -> FakeHost:
        return self.fleet.feed.hosts[self.name]

    def _progress(self, params: dict[str, Any]) -> dict[str, Any]:
        self.recalled += 1
        return {"records": self.past}

    def _probe(self, params: dict[str, Any]) -> dict[str, Any]:
        torch = {
            "path": "/opt/conda/bin/python",
            "version": "3.11.7",
            "torch": "2.7.1",
            "cuda": "12.6",
            "packages": {"torch": "2.7.1", **self.packages},
        }
        host = self.fake_host()
        named = {
            **torch,
            "path": "/home/me/venv/bin/python",
            "packages": {"torch": "2.7.1", "deepspeed": "0.19"},
        }
        known = params.get("python") == "~/venv/bin/python"
        answer = {"interpreters": [torch], "gpus": host.gpus, "cores": host.cores}
        return {**answer, "named": named if known else None}

    def _checkpoints(self, params: dict[str, Any]) -> dict[str, Any]:
        path = f"/root/.encamp/runs/{params['run']}/checkpoints"
        complete = [{"step": step, "time": self.fleet.feed.time - 60} for step in self.checkpoints]
        return {"path": path, "kind": "task", "complete": complete, "incomplete": []}

    def _signal(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"pid": 48_000 + params["rank"]}

    def _evidence(self, params: dict[str, Any]) -> dict[str, Any]:
        host = self.fake_host()
        looked = self.fleet.feed.evidence.get(params["run"], healthy)
        info = dataclasses.replace(host.runs[params["run"]], attempt=params["attempt"])
        return {"evidence": wire.to_json(looked(host, info)), "alarm": None}

    def _run(self, params: dict[str, Any]) -> dict[str, Any]:
        newest = self.fake_host().runs[params["run"]]
        older = range(1, newest.attempt)
        attempts = [
            {"attempt": number, "state": "stopped", "reason": "Stopped by maria."} for number in older
        ]
        return {"attempts": [*attempts, {"attempt": newest.attempt, "state": newest.state}]}

    def _events(self, params: dict[str, Any]) -> dict[str, Any]:
        events = self.fleet.feed.events.get((self.name, params["run"]), [])
        return {"events": [wire.to_json(event) for event in events]}

    def _blob_has(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"present": True}

    def _spec(self, params: dict[str, Any]) -> dict[str, Any]:
        info = self.fleet.feed.hosts[self.name].runs[params["run"]]
        spec = wire.LaunchSpec(info.run, info.name, info.profile, info.strategy, "script", "/root/train.py")
        return {"spec": wire.to_json(spec), "attempt": info.attempt, "placement": None}

    def _plan(self, params: dict[str, Any]) -> dict[str, Any]:
        answer = self._launch({**params, "dry_run": True})
        return {**answer, "torch": "2.7.1", "cuda": "12.6", "port": 29500}

    def _file_list(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._browse(browse.entries, params["path"], params["start"])

    def _file_read(self, params: dict[str, Any]) -> dict[str, Any]:
        data: bytes = self._browse(browse.read, params["path"], params["offset"], params["length"])
        return {"data": base64.b64encode(data).decode()}

    def _file_hash(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._browse(browse.sha256, params["path"], params["length"])

    def _browse(self, action: Callable[..., Any], path: str, *arguments: int) -> Any:
        try:
            return action(str(self.files), path, *arguments)
        except RunError as error:
            raise RequestRefused(error.code, error.message) from None

    async def open_bulk(self, command: str) -> Any:
        raise HostUnfit(f"{self.name} allows one command at a time.")

    def _prepare(self, params: dict[str, Any]) -> dict[str, Any]:
        placement = wire.from_json(wire.Placement, params["placement"])
        spec = wire.from_json(wire.LaunchSpec, params["spec"])
        self.fleet.feed.run(
            self.name,
            spec.run,
            ranks=spec.nproc_per_node or 2,
            state="starting",
            attempt=params["attempt"],
            nodes=placement.nodes,
            node_rank=placement.node_rank,
        )
        return self._plan(params)

    def _start(self, params: dict[str, Any]) -> dict[str, Any]:
        self.fleet.feed.change_run(self.name, params["run"], state="running")
        self.fleet.feed.feed_host(self.fleet.feed.hosts[self.name])
        return {}

    def _confirm(self, params: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _abandon(self, params: dict[str, Any]) -> dict[str, Any]:
        self.fleet.feed.hosts[self.name].runs.pop(params["run"], None)
        self.store.apply(self.name, wire.Removed(params["run"]))
        return {}

    def _launch(self, params: dict[str, Any]) -> dict[str, Any]:
        spec = wire.from_json(wire.LaunchSpec, params["spec"])
        ranks = spec.nproc_per_node or 2
        if not params["dry_run"]:
            self.fleet.feed.run(self.name, spec.run, ranks=ranks, state="starting")
        argv = [
            "/opt/conda/bin/python",
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={ranks}",
            spec.target,
        ]
        return {
            "run": spec.run,
            "attempt": 1,
            "world_size": ranks,
            "nproc_per_node": ranks,
            "python": "/opt/conda/bin/python",
            "argv": [*argv, *spec.args],
            "env": {"OMP_NUM_THREADS": "1", **spec.env},
            "cwd": spec.cwd or "/root",
        }

    def _restart(self, params: dict[str, Any]) -> dict[str, Any]:
        info = self.fleet.feed.hosts[self.name].runs[params["run"]]
        attempt = info.attempt + 1
        self.fleet.feed.change_run(self.name, info.run, attempt=attempt, state="running", ended=None)
        return {
            "run": info.run,
            "attempt": attempt,
            "world_size": info.world_size,
            "nproc_per_node": info.nproc_per_node,
            "python": info.python,
            "argv": list(info.command),
            "env": {},
            "cwd": info.cwd,
        }

    def _stop(self, params: dict[str, Any]) -> dict[str, Any]:
        self.fleet.feed.change_run(
            self.name,
            params["run"],
            state="stopped",
            reason=f"Stopped by {params['actor']}.",
            ended=self.fleet.feed.time,
        )
        return {"state": "stopped", "reaped": []}

    async def read_log(
        self, run: str, attempt: int, stream: str, offset: int, length: int
    ) -> tuple[int, bytes, int, bool]:
        start = max(0, len(LOG) + offset) if offset < 0 else offset
        return start, LOG[start : start + length], len(LOG), False

    async def follow_log(self, run: str, attempt: int, stream: str, offset: int, sink: Any) -> None:
        if offset < len(LOG):
            sink.data(offset, LOG[offset:])

    async def unfollow_log(self, run: str, attempt: int, stream: str, sink: Any) -> None:
        pass


class FakeFleet:
    """Satisfies `tui.ports.FleetPort`."""

    def __init__(self, feed: Feed, folder: Path) -> None:
        self.feed = feed
        self.folder = folder
        self.store = feed.store
        self.inventory = Inventory(folder / "hosts.toml")
        self.prompts: Prompts = NoPrompts()
        self.sessions: dict[str, FakeSession] = {}
        written = ""
        for host in feed.hosts.values():
            user, _, rest = host.address.rpartition("@")
            name, _, port = rest.partition(":")
            self.sessions[host.name] = FakeSession(self, Host(host.name, name, int(port), user))
            written += f'[hosts."{host.name}"]\nhostname = "{name}"\nport = {port}\nuser = "{user}"\n'
        folder.mkdir(parents=True, exist_ok=True)
        self.inventory.path.write_text(written)

    def add(self, host: Host) -> FakeSession:
        self.feed.add(FakeHost(host.name, host.address, gpus=0), Link.CONNECTING)
        self.sessions[host.name] = FakeSession(self, host)
        return self.sessions[host.name]

    async def remove(self, name: str) -> None:
        del self.sessions[name]
        self.store.remove_host(name)

    def session(self, name: str) -> FakeSession:
        try:
            return self.sessions[name]
        except KeyError:
            raise UsageError(f"There is no host {name}.") from None

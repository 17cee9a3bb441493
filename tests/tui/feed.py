"""Synthetic hosts for tests, benches and screenshots: messages as an agent would send them, put into a store.

Everything is derived from a seed and a tick, so that two runs show the same numbers.
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent import wire
from agent.diagnosis.evidence import Evidence
from tui.fleet.store import Link, Store

GIB = 1024**3
CHANGED = (
    "203.0.113.13:20550 shows another host key than before: it was "
    "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU, now it is "
    "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDxKUsWZRzbcpOhWZk."
)
MODELS = {
    "NVIDIA GeForce RTX 4090": (24, 450),
    "NVIDIA H100 80GB HBM3": (80, 700),
    "NVIDIA A100-SXM4-80GB": (80, 400),
    "NVIDIA RTX 6000 Ada Generation": (48, 300),
}


@dataclass
class FakeHost:
    """One machine: what it has and what it does."""

    name: str
    address: str = ""
    gpus: int = 8
    model: str = "NVIDIA GeForce RTX 4090"
    cores: int = 32
    busy: bool = True
    seed: int = 0
    runs: dict[str, wire.Run] = field(default_factory=dict)
    training: dict[str, wire.Training] = field(default_factory=dict)
    """Of runs whose program says how it trains."""


class Feed:
    """Fills `store` with fake hosts, one tick a second."""

    def __init__(self, store: Store | None = None, *, wall: float | None = None) -> None:
        self.store = store or Store()
        self.hosts: dict[str, FakeHost] = {}
        self.start = time.time() if wall is None else wall
        self.tick = 0
        self.evidence: dict[str, Callable[[FakeHost, wire.Run], Evidence]] = {}
        """What the ranks of a run show; of one that is not named they are well."""
        self.events: dict[tuple[str, str], list[wire.Event]] = {}
        """By host and run."""

    @property
    def time(self) -> float:
        return self.start + self.tick

    def add(self, host: FakeHost, link: Link = Link.LIVE) -> FakeHost:
        host.seed = host.seed or len(self.hosts) + 1
        host.address = host.address or f"root@203.0.113.{len(self.hosts) + 7}:{20544 + len(self.hosts)}"
        self.hosts[host.name] = host
        self.store.add_host(host.name, host.address)
        if link is Link.LIVE:
            self.store.apply(host.name, hello(host, self.time))
            self.store.apply(host.name, wire.Ready())
        self.store.set_link(host.name, link)
        return host

    def run(
        self,
        host: str,
        name: str = "gpt",
        *,
        ranks: int = 2,
        state: str = "running",
        attempt: int = 1,
        started: float = 0.0,
        reason: str = "",
        exit_code: int | None = None,
        ended: float | None = None,
        strategy: str = "ddp",
        nodes: tuple[wire.Node, ...] = (),
        node_rank: int = 0,
        code: str = "",
    ) -> wire.Run:
        started = started or self.time
        info = wire.Run(
            run=name,
            name=name.split("-")[0],
            profile=name.split("-")[0],
            strategy=strategy,
            attempt=attempt,
            state=state,
            reason=reason,
            created=started,
            started=started,
            ended=ended,
            world_size=ranks * max(1, len(nodes)),
            nproc_per_node=ranks,
            python="/opt/conda/bin/python",
            command=(
                "/opt/conda/bin/python",
                "-m",
                "trainer",
                "--task",
                name,
                "--precision",
                "bf16",
                "--steps",
                "5000",
            ),
            cwd="/root/work",
            exit_code=exit_code,
            nodes=nodes,
            node_rank=node_rank,
            code=code,
        )
        self.hosts[host].runs[name] = info
        self.store.apply(host, info)
        return info

    def group(self, hosts: Sequence[str], name: str = "gpt", **options: Any) -> None:
        """A run with so many `ranks` on each of these hosts; options as for `run`."""
        nodes = tuple(
            wire.Node(host, f"{self.hosts[host].seed:032x}", f"10.0.0.{n + 1}", "eth0")
            for n, host in enumerate(hosts)
        )
        for node_rank, host in enumerate(hosts):
            self.run(host, name, nodes=nodes, node_rank=node_rank, **options)

    def happened(self, host: str, run: str, name: str, actor: str, text: str, ago: float = 0.0) -> None:
        """Add an event of a run's attempt."""
        attempt = self.hosts[host].runs[run].attempt
        event = wire.Event(run, attempt, time.time() - ago, name, actor, text)
        self.events.setdefault((host, run), []).append(event)

    def change_run(self, host: str, name: str, **changes: object) -> None:
        info = dataclasses.replace(self.hosts[host].runs[name], **changes)  # type: ignore[arg-type]
        self.hosts[host].runs[name] = info
        self.store.apply(host, info)

    def end_run(self, host: str, name: str, state: str, codes: dict[int, int], **changes: object) -> None:
        """End a run as an agent would: all ranks at once, then the run; ranks not in `codes` got SIGTERM."""
        info = self.hosts[host].runs[name]
        last = ranks(self.hosts[host], info, self.tick, self.time)
        samples = tuple(
            dataclasses.replace(
                rank, state="exited", pid=None, process_state=None, exit_code=codes.get(rank.rank, -15)
            )
            for rank in last.ranks
        )
        self.store.apply(host, dataclasses.replace(last, ranks=samples))
        self.change_run(host, name, state=state, ended=self.time, **changes)

    def advance(self, seconds: int = 1, *, only: list[str] | None = None) -> None:
        """Let so many seconds pass on every live host."""
        for _ in range(seconds):
            self.tick += 1
            for host in self.hosts.values():
                if self.store.hosts[host.name].link is Link.LIVE and (only is None or host.name in only):
                    self.feed_host(host)

    def feed_host(self, host: FakeHost) -> None:
        self.store.apply(host.name, sample(host, self.tick, self.time))
        for info in host.runs.values():
            if info.state in wire.LIVE_STATES and info.state != "starting":
                self.store.apply(host.name, ranks(host, info, self.tick, self.time))
                record = progress(host, self.tick, self.time)
                first = info.node_rank * info.nproc_per_node
                self.store.apply(host.name, wire.Progress(info.run, info.attempt, first, (record,)))


def hello(host: FakeHost, now: float) -> wire.Hello:
    return wire.Hello(
        *wire.PROTOCOL, "0.1.0", "ab" * 32, f"{host.seed:032x}", "boot", host.name, "root", "/root/.encamp",
        "/usr/bin/python3", 4242, now, now - 3600,
    )  # fmt: skip


def wave(seed: int, tick: int, low: float, high: float) -> float:
    noise = random.Random(seed * 1_000_003 + tick).random()
    slow = 0.5 + 0.5 * math.sin(tick / 17 + seed)
    return low + (high - low) * (0.75 * slow + 0.25 * noise)


def sample(host: FakeHost, tick: int, now: float) -> wire.Sample:
    memory, power = MODELS[host.model]
    gpus = []
    for index in range(host.gpus):
        seed = host.seed * 64 + index
        use = wave(seed, tick, 88, 100) if host.busy else 0.0
        gpus.append(
            wire.GpuSample(
                index=index,
                uuid=f"GPU-{seed:08x}",
                name=host.model,
                state="ok",
                utilization_percent=round(use),
                memory_used_bytes=int((0.91 if host.busy else 0.02) * memory * GIB),
                memory_reserved_bytes=300 * 1024**2,
                memory_total_bytes=memory * GIB,
                power_watts=round((wave(seed, tick, 0.8, 0.98) if host.busy else 0.1) * power),
                power_limit_watts=float(power),
                temperature_celsius=round(wave(seed, tick, 62, 74) if host.busy else 34),
            )
        )
    status = wire.GpuStatus("ok", "", now, "550.54.15", tuple(gpus))
    if not host.gpus:
        status = wire.GpuStatus("none", "no NVIDIA GPU", now)
    cpu = wave(host.seed, tick, 60, 96) if host.busy and not host.gpus else wave(host.seed, tick, 2, 14)
    return wire.Sample(
        time=now,
        monotonic=float(tick),
        cpu=wire.CpuSample(host.cores, float(host.cores), round(cpu, 1), cpu * host.cores / 100, 8.1, 7.7),
        memory=wire.MemorySample(int(wave(host.seed, tick, 20, 30) * GIB), 128 * GIB, False),
        shm=wire.SpaceSample("/dev/shm", 1 * GIB, 64 * GIB),
        disk=wire.SpaceSample("/", 118 * GIB, 500 * GIB),
        network=wire.NetworkSample(1.2e6, 3.4e5),
        gpu=status,
        agent=wire.AgentCost(0.4, 31 * 1024**2),
    )


def ranks(host: FakeHost, info: wire.Run, tick: int, now: float) -> wire.Ranks:
    samples = []
    for number in range(info.nproc_per_node):
        seed = host.seed * 64 + number
        samples.append(
            wire.RankSample(
                rank=info.node_rank * info.nproc_per_node + number,
                local_rank=number,
                state="running",
                pid=48_000 + number,
                process_state="R" if (tick + number) % 5 else "S",
                gpu=number % host.gpus if host.gpus else None,
                step=tick * 2 + 1,
                step_time=now - 0.2,
                step_seconds=round(wave(seed, tick, 0.39, 0.44), 3),
                cpu_percent=round(wave(seed, tick, 92, 104), 1),
                rss_bytes=int(wave(seed, tick, 4.0, 4.3) * GIB),
                log_bytes=tick * 96,
                phase="train",
            )
        )
    return wire.Ranks(info.run, info.attempt, now, tuple(samples), host.training.get(info.run))


def progress(host: FakeHost, tick: int, now: float) -> wire.Record:
    step = tick * 2 + 1
    noise = random.Random(tick * 7919 + host.seed).uniform(-0.06, 0.06)
    return {
        "time": now,
        "step": step,
        "loss": round(1.9 + 3.6 * math.exp(-step / 160) + noise, 4),
        "tokens_per_second": round(wave(host.seed, tick, 395e3, 418e3)),
        "learning_rate": 3e-4,
        "phase": "train",
    }


# --- whole fleets ------------------------------------------------------------------------------------------


def cpu_demo(*, seconds: int = 120, ranks: int = 2) -> Feed:
    """What the demo shows: two hosts without GPUs, a run with two ranks on the first."""
    feed = Feed()
    feed.add(FakeHost("demo-1", "demo@127.0.0.1:40022", gpus=0, cores=2))
    feed.add(FakeHost("demo-2", "demo@127.0.0.1:40023", gpus=0, cores=2, busy=False))
    feed.run("demo-1", "gpt-0412", ranks=ranks)
    feed.advance(seconds)
    return feed


def small(*, seconds: int = 120) -> Feed:
    """Hosts in the states of a normal day: two busy, one idle, one without GPUs."""
    feed = Feed()
    feed.add(FakeHost("vast-a"))
    feed.add(FakeHost("vast-b", model="NVIDIA H100 80GB HBM3", gpus=4, cores=64))
    feed.add(FakeHost("hetzner-1", model="NVIDIA RTX 6000 Ada Generation", gpus=4, busy=False))
    feed.add(FakeHost("login", gpus=0, cores=16, busy=False))
    feed.run("vast-a", "gpt-0412", ranks=8)
    feed.run("vast-b", "vit-large", ranks=4)
    feed.run("hetzner-1", "probe-1", ranks=4, state="finished", exit_code=0, ended=feed.start - 3 * 3600)
    feed.advance(seconds)
    return feed


def troubled(*, seconds: int = 120) -> Feed:
    """Every state that a connection can be in, beside two hosts that are well."""
    feed = small(seconds=seconds)
    now, store = time.monotonic(), feed.store
    for name, link in (
        ("runpod-2", Link.LIVE), ("lambda-1", Link.RECONNECTING), ("runpod-9", Link.KEY_CHANGED),
        ("old-box", Link.REFUSED), ("vast-c", Link.AUTH_FAILED), ("vast-d", Link.INSTALLING),
        ("vast-e", Link.CONNECTING), ("vast-f", Link.IDLE), ("vast-g", Link.CONFIRM_KEY),
    ):  # fmt: skip
        feed.add(FakeHost(name, model="NVIDIA H100 80GB HBM3"), link)
    feed.run("runpod-2", "llama-ft", ranks=8)
    feed.advance(5, only=["runpod-2"])
    store.set_link(
        "runpod-2", Link.UNREACHABLE, "Connection refused by 203.0.113.11 port 20548.",
        "Check that the instance still runs.", now + 8,
    )  # fmt: skip
    store.hosts["runpod-2"].received = now - 240
    store.set_link("lambda-1", Link.RECONNECTING, "The connection was lost.", "", now + 4)
    store.set_link(
        "runpod-9", Link.KEY_CHANGED,
        CHANGED,
        "If it was set up anew, say so with: encamp hosts forget-key runpod-9. If not, do not connect.",
    )  # fmt: skip
    store.set_link(
        "old-box", Link.REFUSED, "No Python 3.8 or newer was found.", "Install python3 on the host."
    )
    store.set_link(
        "vast-c", Link.AUTH_FAILED, "The host did not accept any of your keys.", "Add your key there."
    )
    feed.end_run(
        "vast-b", "vit-large", "failed", {2: 1}, reason="rank 2 ended with exit code 1.", exit_code=1
    )
    for _ in range(3):
        store.count_bad_message("hetzner-1")
    return feed


def two_by_four(*, seconds: int = 120) -> Feed:
    """A run with four ranks on each of two hosts, and a third host that is idle."""
    feed = Feed()
    for name in ("vast-a", "vast-b"):
        feed.add(FakeHost(name, gpus=4))
    feed.add(FakeHost("spare", gpus=4, busy=False))
    code = "nanogpt 3f2c1a9b40 (3f2c1a9 with changes)"
    feed.group(["vast-a", "vast-b"], "gpt-0412", ranks=4, code=code)
    feed.advance(seconds)
    return feed


def three_by_eight(*, seconds: int = 120) -> Feed:
    """A run with eight ranks on each of three hosts."""
    feed = Feed()
    names = ["runpod-1", "runpod-2", "runpod-3"]
    for name in names:
        feed.add(FakeHost(name, model="NVIDIA H100 80GB HBM3"))
    feed.group(names, "llama-ft", ranks=8, strategy="fsdp")
    feed.advance(seconds)
    return feed


def large(hosts: int = 200, *, gpus: int = 8, seconds: int = 2) -> Feed:
    """A big fleet, every host with a run on all of its GPUs."""
    feed = Feed()
    models = list(MODELS)
    for index in range(hosts):
        feed.add(FakeHost(f"node-{index:03d}", gpus=gpus, model=models[index % len(models)]))
        feed.run(f"node-{index:03d}", f"gpt-{index:03d}", ranks=gpus)
    feed.advance(seconds)
    return feed

"""What a host says when it is opened up: its GPUs, its cores, and one line about all the rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import islice

from .. import formatting as fmt
from .. import plotting
from ..facts import HostFacts, gpu_stale_seconds
from ..fleet.store import HostView, Link, NodeView, Series
from .columns import Cell, Column, Slot, fit, width_of

COLUMNS = (
    Column("index", "", 7, right=True, keep=20, gap=0),
    Column("model", "", 14, keep=1, widest=24),
    Column("util", "", 5, right=True, keep=19),
    Column("bar", "", 8, keep=10, widest=16, gap=1),
    Column("memory", "", 11, right=True, keep=18),
    Column("power", "", 9, right=True, keep=15),
    Column("hot", "", 4, right=True, keep=14),
    Column("rank", "", 8, keep=16, widest=20),
    Column("history", "", 10, keep=5, widest=60),
)
"""Columns of the rows under a host. The history has a dot a second, on 0-100 %."""


@cache
def slots(width: int, mixed: bool) -> tuple[Slot, ...]:
    """The columns that fit into a table of this width; models are named where a host has several."""
    return fit([column for column in COLUMNS if mixed or column.key != "model"], width - 2)


def gpu_cells(host: HostView, facts: HostFacts, index: int, slots: Sequence[Slot]) -> dict[str, Cell]:
    """One GPU."""
    gpu = next((gpu for gpu in host.sample.gpu.gpus if gpu.index == index), None) if host.sample else None
    if gpu is None:
        return {"index": str(index), "util": fmt.UNKNOWN}
    cells: dict[str, Cell] = {
        "index": (str(index), "quiet"),
        "model": (fmt.short_gpu_name(gpu.name), "quiet"),
        "util": fmt.percent(gpu.utilization_percent),
        "bar": (fmt.bar(_share(gpu.utilization_percent, 100), width_of(slots, "bar")), "util"),
        "memory": fmt.gib(gpu.memory_used_bytes, gpu.memory_total_bytes),
        "power": fmt.watts(gpu.power_watts, gpu.power_limit_watts),
        "hot": fmt.UNKNOWN if gpu.temperature_celsius is None else f"{gpu.temperature_celsius:.0f}°",
        "rank": ("", ""),
        "history": (_dots(host.gpu_utilization.get(index), width_of(slots, "history")), "util"),
    }
    if gpu.state not in ("ok", "none"):
        cells["rank"] = ("▲ " + gpu.state.replace("-", " "), "trouble")
    elif index in facts.ranks_by_gpu:
        run, rank = facts.ranks_by_gpu[index]
        short, long = f"rank {rank}", f"rank {rank} of {run}"
        cells["rank"] = fmt.choose((long, short), width_of(slots, "rank"))
    return cells


def cpu_cells(host: HostView, slots: Sequence[Slot]) -> dict[str, Cell]:
    """The host's own processors and memory."""
    sample = host.sample
    if sample is None:
        return {}
    cpu, memory = sample.cpu, sample.memory
    limited = f"{cpu.limit_cores:g} of {cpu.logical_cores} cores"
    cores = limited if cpu.limit_cores < cpu.logical_cores else fmt.plural(cpu.logical_cores, "core")
    return {
        "index": ("cpu", "quiet"),
        "util": fmt.percent(cpu.percent),
        "bar": (fmt.bar(_share(cpu.percent, 100), width_of(slots, "bar")), "util"),
        "memory": fmt.gib(memory.used_bytes, memory.limit_bytes),
        "power": f"load {cpu.load1:.1f}",
        "rank": (cores, "quiet"),
        "history": (_dots(host.cpu, width_of(slots, "history")), "util"),
    }


def node_words(node: NodeView) -> str:
    """Which part of a run on several hosts a host has: `node 1 of 2`; empty for a run on one."""
    info = node.info
    return f"node {info.node_rank + 1} of {len(info.nodes)}" if len(info.nodes) > 1 else ""


def parts_of_runs(host: HostView) -> list[str]:
    """What the host has of live runs on several hosts, a sentence each."""
    said = []
    for node in host.runs.values():
        info = node.info
        if node.live and len(info.nodes) > 1:
            first = info.node_rank * info.nproc_per_node
            ranks = fmt.span_of(first, first + info.nproc_per_node - 1)
            others = [other.name for rank, other in enumerate(info.nodes) if rank != info.node_rank]
            said.append(f"{node_words(node)} of {node.id}: {ranks}, with {fmt.listed(others)}")
    return said


def detail(host: HostView) -> str:
    """Where the host is and how full it is, on one line."""
    parts = [host.address]
    sample = host.sample
    if sample is not None:
        if sample.gpu.driver:
            parts.append(f"driver {sample.gpu.driver}")
        if sample.disk is not None:
            parts.append(f"disk {fmt.gib(sample.disk.used_bytes, sample.disk.total_bytes)}")
        if sample.shm is not None:
            parts.append(f"shm {fmt.gib(sample.shm.used_bytes, sample.shm.total_bytes)}")
        network = sample.network
        if network.receive_bytes_per_second is not None and network.transmit_bytes_per_second is not None:
            received, sent = network.receive_bytes_per_second, network.transmit_bytes_per_second
            parts.append(f"net {fmt.size(received)}/s in {fmt.size(sent)}/s out")
        parts.append(f"agent {fmt.size(sample.agent.rss_bytes)}")
        if sample.agent.cpu_percent is not None:
            parts[-1] += f" {sample.agent.cpu_percent:.1f} %"
    return " · ".join(parts)


def notes(host: HostView, facts: HostFacts) -> list[str]:
    """What is wrong with the host and what to do about it, a sentence each."""
    said = [sentence for sentence in (host.message, host.hint) if sentence]
    if host.link is Link.LIVE and facts.gpu_problem and host.sample is not None:
        message = host.sample.gpu.message
        said.append(f"{facts.gpu_problem}: {message}" if message else facts.gpu_problem)
    if facts.run is not None and facts.run_mark is not None and facts.run_mark.word == "failed":
        said.append(f"{facts.run.id} failed: {facts.run.info.reason or 'no reason known'}")
    if facts.run is not None and facts.run_mark is not None and facts.run_mark.word == "stalled":
        said.append(f"{facts.run.id} stalls: {facts.run.info.reason or 'no reason known'}")
    behind = gpu_stale_seconds(host)
    if behind is not None:
        said.append(f"The GPUs have not answered for {fmt.span(behind)}.")
    if host.bad_messages:
        what = fmt.plural(host.bad_messages, "message")
        said.append(f"{what} of its agent could not be read and were dropped.")
    return said


def history(host: HostView, width: int) -> str:
    """The host's utilisation, a dot a second on 0-100 %: of its GPUs together, or of its cores."""
    if width <= 0:
        return ""
    if not host.gpu_utilization:
        return _dots(host.cpu, width)
    recent = [_recent(series, 2 * width) for series in host.gpu_utilization.values()]
    return plotting.history([fmt.mean(column) for column in zip(*recent, strict=True)], width)


def _dots(series: Series | None, width: int) -> str:
    return "" if series is None or width <= 0 else plotting.history(_recent(series, 2 * width), width)


def _recent(series: Series, size: int) -> list[float | None]:
    """The last `size` values, oldest first, with None before the first one."""
    values = list(islice(reversed(series.values), size))
    values += [None] * (size - len(values))
    values.reverse()
    return values


def _share(value: float | None, of: float) -> float | None:
    return None if value is None else value / of

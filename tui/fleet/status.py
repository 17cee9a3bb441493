"""The store as JSON: the shape of `encamp status --json`, which scripts rely on.

Fields may be added; none is removed or changes its meaning. Times are seconds since the epoch: `since` by
this machine's clock, all others by the host's. What is not known is null.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from .store import HostView, NodeView, RankView, RunView, Store


def document(store: Store) -> dict[str, Any]:
    """Everything the store knows of hosts and runs, runs newest first."""
    now = time.monotonic()
    return {
        "hosts": [host(view, now) for view in store.hosts.values()],
        "runs": [run(run_view, now) for run_view in store.runs()],
    }


def link_word(view: HostView) -> str:
    """The state of the connection as one word: `live`, `unreachable`, `key-changed`, ..."""
    return view.link.value.replace(" ", "-")


def host(view: HostView, now: float | None = None) -> dict[str, Any]:
    """One host. `now` is `time.monotonic()`."""
    sample, hello = view.sample, view.hello
    return {
        "name": view.name,
        "address": view.address,
        "state": link_word(view),
        "since": view.since,
        "message": view.message,
        "hint": view.hint,
        "age_seconds": _rounded(view.age(now)),
        "hostname": hello.hostname if hello else None,
        "user": hello.user if hello else None,
        "agent": {
            "version": hello.version if hello else None,
            "build": hello.build if hello else None,
            "python": hello.python if hello else None,
            "home": hello.home if hello else None,
            "cpu_percent": sample.agent.cpu_percent if sample else None,
            "rss_bytes": sample.agent.rss_bytes if sample else None,
        },
        "gpu_state": sample.gpu.state if sample else None,
        "gpu_message": sample.gpu.message if sample else None,
        "driver": sample.gpu.driver if sample else None,
        "gpus": [dataclasses.asdict(gpu) for gpu in sample.gpu.gpus] if sample else [],
        "cpu": dataclasses.asdict(sample.cpu) if sample else {},
        "memory": dataclasses.asdict(sample.memory) if sample else None,
        "shm": dataclasses.asdict(sample.shm) if sample and sample.shm else None,
        "disk": dataclasses.asdict(sample.disk) if sample and sample.disk else None,
        "network": dataclasses.asdict(sample.network) if sample else None,
        "bad_messages": view.bad_messages,
        "runs": [node.id for node in _newest_first(view)],
    }


def run(run_view: RunView, now: float | None = None) -> dict[str, Any]:
    """One run with its ranks, in the order of the ranks. `now` is `time.monotonic()`."""
    info = run_view.info
    now = time.monotonic() if now is None else now
    state, reason = run_view.standing()
    return {
        "id": info.run,
        "name": info.name,
        "profile": info.profile,
        "state": state,
        "reason": reason,
        "strategy": info.strategy,
        "attempt": info.attempt,
        "hosts": list(run_view.hosts),
        "nodes": [node(host_view, node_view) for host_view, node_view in run_view.parts],
        "missing": list(run_view.missing),
        "leftovers": list(run_view.leftovers),
        "world_size": info.world_size,
        "nproc_per_node": info.nproc_per_node,
        "created": info.created,
        "started": info.started,
        "ended": run_view.ended,
        "exit_code": run_view.exit_code,
        "step": run_view.step,
        "training": training(run_view),
        "python": info.python,
        "command": list(info.command),
        "cwd": info.cwd,
        "code": info.code,
        "ranks": [rank(rank_view, now) for _, rank_view in sorted(run_view.ranks.items())],
    }


def training(run_view: RunView) -> dict[str, Any] | None:
    """How the ranks share the work, as the program itself says; null for one that says nothing."""
    said = run_view.training
    return None if said is None else {name: value or None for name, value in dataclasses.asdict(said).items()}


def node(view: HostView, node_view: NodeView) -> dict[str, Any]:
    """One host's part of a run: how its ranks stand, and by what the other hosts reach them."""
    info = node_view.info
    mine = info.nodes[info.node_rank] if info.nodes else None
    return {
        "host": view.name,
        "node_rank": info.node_rank,
        "state": view.run_state(node_view),
        "reason": info.reason,
        "address": mine.address if mine else None,
        "interface": mine.interface if mine else None,
    }


def rank(rank_view: RankView, now: float) -> dict[str, Any]:
    """One rank. `age_seconds` says how long ago these values arrived here."""
    sample = rank_view.sample
    return {
        "rank": sample.rank,
        "local_rank": sample.local_rank,
        "host": rank_view.host,
        "state": sample.state,
        "pid": sample.pid,
        "process_state": sample.process_state,
        "gpu": sample.gpu,
        "step": sample.step,
        "step_seconds": sample.step_seconds,
        "phase": sample.phase,
        "cpu_percent": sample.cpu_percent,
        "rss_bytes": sample.rss_bytes,
        "log_bytes": sample.log_bytes,
        "age_seconds": _rounded(now - rank_view.received),
        "exit_code": sample.exit_code,
    }


def _newest_first(view: HostView) -> list[NodeView]:
    return sorted(view.runs.values(), key=lambda node: node.info.started, reverse=True)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(max(0.0, seconds), 3)

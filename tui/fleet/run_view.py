"""A whole run: the parts that its hosts tell of, put together, and what they say about it as one.

A `RunView` holds references only and is made anew when the parts change; what it says is derived when it is
asked, so it is never older than the parts are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent import wire

from .views import HostView, Link, NodeView, RankView, Series

Part = tuple[HostView, NodeView]

HEARD_SECONDS = 10.0
"""So long after the start of an attempt a host that has not told of it may only be slow to do so."""


@dataclass(frozen=True, slots=True, eq=False)
class RunView:
    """One run on all of its hosts. `parts` are those of its newest attempt, by node rank."""

    id: str
    parts: tuple[Part, ...]
    older: tuple[Part, ...] = ()
    """Hosts whose newest attempt is an older one: it went on without them."""
    absent: tuple[tuple[wire.Node, HostView | None], ...] = ()
    """Hosts of the newest attempt that have not told of it, with our view of them where there is one."""

    # --- who is in it ------------------------------------------------------------------------------------

    @property
    def host(self) -> HostView:
        """The host with the lowest node rank that is known: it speaks for what all have in common."""
        return self.parts[0][0]

    @property
    def info(self) -> wire.Run:
        """The run as that host tells of it."""
        return self.parts[0][1].info

    @property
    def attempt(self) -> int:
        """The newest attempt."""
        return self.info.attempt

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the newest attempt's hosts in the order of node ranks, also of those not heard of."""
        heard = {node.info.node_rank: host.name for host, node in self.parts}
        absent = iter(self.missing)
        several = range(len(self.info.nodes) or 1)
        return tuple(heard[rank] if rank in heard else next(absent, "?") for rank in several)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of those of its hosts that have not told of the newest attempt."""
        return tuple(node.name if view is None else view.name for node, view in self.absent)

    @property
    def leftovers(self) -> tuple[str, ...]:
        """Names of hosts on which an older attempt still lives, as far as is known."""
        return tuple(host.name for host, node in self.older if node.live)

    def part_of(self, rank: int) -> Part | None:
        """The part that has the rank; for -1 the one of node rank 0, for -2 of node rank 1, and so on."""
        wanted = rank // max(1, self.info.nproc_per_node) if rank >= 0 else -1 - rank
        return next((part for part in self.parts if part[1].info.node_rank == wanted), None)

    # --- how it stands -----------------------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """Whether processes of the newest attempt are, as far as is known, still there."""
        return any(node.live for _, node in self.parts)

    @property
    def state(self) -> str:
        """One of `wire.RUN_STATES`."""
        return self.standing()[0]

    @property
    def reason(self) -> str:
        """One sentence or two: why it is so, naming the host where there are several."""
        return self.standing()[1]

    def standing(self) -> tuple[str, str]:
        """State and reason."""
        if not self.live:
            return self._end()
        gone = self._gone()
        failed = [part for part in self.parts if part[1].info.state == "failed"]
        unasked = [host for host, node in self.parts if host.run_state(node) == "unreachable"]
        living = ", ".join(host.name for host, node in self.parts if node.live and host not in unasked)
        still = f"Ranks on {living} still live: stop the run, or restart it." if living else ""
        unasked += [view for _, view in self.absent if view is not None and not view.ready]
        names = ", ".join(host.name for host in unasked)
        unknown = f"{names} cannot be asked: whether its ranks still live is not known" if unasked else ""
        if failed or gone:
            return "failed", _sentences(gone or self._why(failed), still, unknown)
        states = {host.run_state(node): (host, node) for host, node in reversed(self.parts)}
        if "stopping" in states:
            return "stopping", states["stopping"][1].info.reason
        if "stopped" in states:
            state = "stopping" if living else "unreachable"
            return state, _sentences(self._why([states["stopped"]]), still, unknown)
        if unasked:
            return "unreachable", _sentences(f"{names} cannot be asked", unasked[0].message)
        if "stalled" in states:
            return "stalled", self._stalls()
        for state in ("starting", "running"):
            if state in states:  # where a rank has failed, its host says so before all are over
                reasons = (node.info.reason for _, node in self.parts if node.info.state == state)
                return state, next(filter(None, reasons), "")
        return self.info.state, self.info.reason

    def _stalls(self) -> str:
        """Why: each host judges by its own ranks only, and the one that can name a rank knows most."""
        reasons = [node.info.reason for host, node in self.parts if host.run_state(node) == "stalled"]
        return next((reason for reason in reasons if reason.startswith("rank ")), reasons[0])

    def _end(self) -> tuple[str, str]:
        unheard = ", ".join(view.name for _, view in self.absent if view is not None and not view.ready)
        unknown = f"{unheard} cannot be asked: whether its ranks have ended is not known" if unheard else ""
        for state in ("failed", "stopped", "finished"):
            ended = [part for part in self.parts if part[1].info.state == state]
            if ended:
                return state, _sentences(self._why(ended), unknown)
        return self.info.state, self.info.reason

    def _why(self, parts: Sequence[Part]) -> str:
        """The reason of the part that ended first: the others end because it did."""
        first = min(parts, key=lambda part: _end_of(*part))
        host, node = first
        if len(self.hosts) == 1 or (node.info.state == "finished" and not node.info.reason):
            return node.info.reason
        return f"{host.name}: {node.info.reason or node.info.state}"

    def _gone(self) -> str:
        """What is said of hosts that are there but not as the machine that was launched on."""
        began = time.time() + self.host.clock_offset - self.info.started
        behind = {host.name: node.info.attempt for host, node in self.older}
        said = []
        for node, view in self.absent:
            if view is None or not view.ready:
                continue
            if view.host_id != node.host_id:
                said.append(f"{view.name} was replaced: another machine answers at its address")
            elif began > HEARD_SECONDS and view.name in behind:
                said.append(f"{view.name} is still at attempt {behind[view.name]}")
            elif began > HEARD_SECONDS and len(view.told) < wire.KNOWN_RUNS:
                said.append(f"{view.name} knows nothing of the run any more")
        return ". ".join(said)

    # --- what it does ------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """Grows with every change of a part while the view is the same object."""
        return sum(node.revision for _, node in self.parts)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal as long as nothing has changed but telemetry of its hosts that is not the run's."""
        links = (host.link for host, _ in self.parts)
        known = ((view.link, view.ready) if view is not None else None for _, view in self.absent)
        return self.attempt, self.revision, *links, *known, *(node.revision for _, node in self.older)

    @property
    def ranks(self) -> dict[int, RankView]:
        """All ranks that are known, in their order."""
        if len(self.parts) == 1:
            return self.parts[0][1].ranks
        merged = {number: rank for _, node in self.parts for number, rank in node.ranks.items()}
        return dict(sorted(merged.items()))

    @property
    def step(self) -> int | None:
        """The step that all ranks have reached: the lowest of the ranks that count steps."""
        return min((node.step for _, node in self.parts if node.step is not None), default=None)

    @property
    def training(self) -> wire.Training | None:
        """How its ranks share the work, where the program says so."""
        return next((node.training for _, node in self.parts if node.training is not None), None)

    @property
    def pace(self) -> Series:
        """Steps per second of the slowest rank; times are those of the first host's clock."""
        series = [node.pace for _, node in self.parts if len(node.pace)]
        if len(series) <= 1:
            return series[0] if series else self.parts[0][1].pace
        slowest = Series()
        columns = zip(*(reversed(each.values) for each in series))  # noqa: B905 - the last ones of each
        values = [min((value for value in column if value is not None), default=None) for column in columns]
        times = list(series[0].times)[-len(values) :]
        for at, value in zip(times, reversed(values), strict=True):
            slowest.append(at, value)
        return slowest

    @property
    def progress(self) -> deque[wire.Record]:
        """Progress records of the lowest rank that reports, oldest first."""
        return self._reporting().progress

    @property
    def progress_rank(self) -> int | None:
        """The rank whose records these are."""
        return self._reporting().progress_rank

    @property
    def ended(self) -> float | None:
        """When the last of its parts ended, by the first host's clock; None while one lives."""
        ends = [
            None if node.info.ended is None or node.live else _end_of(host, node) for host, node in self.parts
        ]
        known = [end for end in ends if end is not None]
        return max(known) + self.host.clock_offset if len(known) == len(ends) else None

    @property
    def exit_code(self) -> int | None:
        """That of the part to blame for a failure, else of the first host."""
        failed = [part for part in self.parts if part[1].info.exit_code not in (None, 0)]
        return (
            min(failed, key=lambda part: _end_of(*part))[1].info.exit_code if failed else self.info.exit_code
        )

    def _reporting(self) -> NodeView:
        reporting = [node for _, node in self.parts if node.progress_rank is not None]
        return min(reporting, key=lambda node: node.progress_rank or 0, default=self.parts[0][1])


def whole_runs(hosts: Sequence[HostView]) -> dict[str, list[RunView]]:
    """All runs of these hosts by name. One name has several runs only when it was given by hand twice."""
    named: dict[str, dict[str, Part]] = {}
    for host in sorted(hosts, key=lambda host: host.link is not Link.LIVE):
        for run_id, node in host.runs.items():
            # Of two names of one machine the first one counts: one that answers, if any does.
            named.setdefault(run_id, {}).setdefault(_machine(host, node), (host, node))
    return {
        run_id: [_whole(run_id, parts, hosts) for parts in _together(machines)]
        for run_id, machines in named.items()
    }


def _machine(host: HostView, node: NodeView) -> str:
    if host.host_id:
        return host.host_id
    nodes = node.info.nodes
    return nodes[node.info.node_rank].host_id if nodes else f"name {host.name}"


def _together(machines: dict[str, Part]) -> Iterable[list[Part]]:
    """The parts sorted by runs: those belong together that name the same machine as one of their hosts."""
    groups: list[tuple[set[str], list[Part]]] = []
    for machine, part in machines.items():
        named = {machine, *(node.host_id for node in part[1].info.nodes)}
        parts = [part]
        for group in [group for group in groups if group[0] & named]:
            groups.remove(group)
            named |= group[0]
            parts = [*group[1], *parts]
        groups.append((named, parts))
    return (parts for _, parts in groups)


def _whole(run_id: str, parts: list[Part], hosts: Sequence[HostView]) -> RunView:
    newest = max(node.info.attempt for _, node in parts)
    current = [part for part in parts if part[1].info.attempt == newest]
    current.sort(key=lambda part: part[1].info.node_rank)
    older = [part for part in parts if part[1].info.attempt != newest]
    heard = {node.info.node_rank for _, node in current}
    nodes = current[0][1].info.nodes
    absent = [(node, _view_of(node, hosts)) for rank, node in enumerate(nodes) if rank not in heard]
    return RunView(run_id, tuple(current), tuple(older), tuple(absent))


def _view_of(node: wire.Node, hosts: Sequence[HostView]) -> HostView | None:
    """Our view of a host of a run: the same machine, else what took its place, else one of its name."""
    same = [host for host in hosts if host.host_id == node.host_id]
    if same:
        return min(same, key=lambda host: host.link is not Link.LIVE)
    took = next((host for host in hosts if node.host_id in host.former_ids), None)
    return took or next((host for host in hosts if host.name == node.name), None)


def _end_of(host: HostView, node: NodeView) -> float:
    """When a part ended, by our clock."""
    ended = node.info.ended
    return (node.info.started if ended is None else ended) - host.clock_offset


def _sentences(*parts: str) -> str:
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts if part)

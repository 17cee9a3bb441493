"""What can be said about a host and its runs at a glance, derived from the store's views.

Pure functions: a view in, a small frozen object out. `HostFacts` holds what depends only on the view's
revision, so a screen derives it once per change; what depends on the time of day is asked for with `now`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from agent import wire

from . import diagnosis_facts
from . import formatting as fmt
from .fleet.store import STALE_SECONDS, HostView, Link, NodeView
from .formatting import Mark

LATE_SECONDS = 10.0
"""Telemetry older than this makes a live host degraded, not only dim."""

LINK_MARKS = {
    Link.IDLE: Mark("○", "not connected", fmt.QUIET),
    Link.CONNECTING: Mark("◌", "connecting", fmt.STARTING),
    Link.CONFIRM_KEY: Mark("◌", "new host key", fmt.STARTING),
    Link.INSTALLING: Mark("◌", "installing", fmt.STARTING),
    Link.RECONNECTING: Mark("◐", "reconnecting", fmt.DEGRADED),
    Link.UNREACHABLE: Mark("✕", "unreachable", fmt.TROUBLE),
    Link.KEY_CHANGED: Mark("✕", "key changed", fmt.TROUBLE),
    Link.AUTH_FAILED: Mark("✕", "auth failed", fmt.TROUBLE),
    Link.REFUSED: Mark("✕", "refused", fmt.TROUBLE),
}
"""Marks of the links that are not `LIVE`: a live host is judged by what it reports."""

SEVERITY = {fmt.TROUBLE: 0, fmt.DEGRADED: 1}
"""Order in which trouble rises; everything else keeps its place."""

HEALTHY = 2


@dataclass(frozen=True, slots=True)
class GpuTotals:
    """The GPUs of one host together. Units as in `agent.wire`; None where no GPU says."""

    number_of: int
    model: str
    utilization: float | None
    each: tuple[float | None, ...]
    memory_used: float | None
    memory_total: float | None
    power: float | None
    power_limit: float | None
    hottest: float | None
    broken: tuple[str, ...]
    """`GPU 3 lost`, for every GPU that is not ok."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host's view says at one revision."""

    revision: int
    mark: Mark
    gpus: GpuTotals | None
    """None on a host without GPUs, or while it is not known."""
    gpu_problem: str
    """Why the GPUs cannot be read; empty when they can, or when there are none."""
    run: NodeView | None
    """The run that matters most: the newest live one, else the newest."""
    run_mark: Mark | None
    live_runs: int
    ranks_by_gpu: dict[int, tuple[str, int]]
    """GPU index to (run, rank) of the live runs."""


def host_facts(host: HostView) -> HostFacts:
    """Derive what `host` says now."""
    run = leading_run(host)
    state = host.run_state(run) if run is not None else ""
    run_mark = fmt.run_mark(state) if run is not None else None
    gpus, problem = gpu_totals(host.sample.gpu) if host.sample is not None else (None, "")
    live = [each for each in host.runs.values() if each.live]
    return HostFacts(
        revision=host.revision,
        mark=_mark(host, run_mark, gpus, problem, bool(live)),
        gpus=gpus,
        gpu_problem=problem,
        run=run,
        run_mark=run_mark,
        live_runs=len(live),
        ranks_by_gpu={
            rank.sample.gpu: (each.id, number)
            for each in live
            for number, rank in each.ranks.items()
            if rank.sample.gpu is not None
        },
    )


def leading_run(host: HostView) -> NodeView | None:
    """The run that matters most on `host`: the newest live one, else the newest."""
    return max(host.runs.values(), key=lambda run: (run.live, run.info.started), default=None)


def gpu_totals(status: wire.GpuStatus) -> tuple[GpuTotals | None, str]:
    """The GPUs of a host added up, and why they cannot be read (or an empty string)."""
    gpus = status.gpus
    problem = ""
    if status.state not in ("ok", "none"):
        problem = f"driver {status.state.replace('-', ' ')}"
    if not gpus:
        return None, problem
    models = {gpu.name for gpu in gpus}
    return (
        GpuTotals(
            number_of=len(gpus),
            model=fmt.short_gpu_name(gpus[0].name) if len(models) == 1 else "mixed",
            utilization=fmt.mean(gpu.utilization_percent for gpu in gpus),
            each=tuple(gpu.utilization_percent for gpu in gpus),
            memory_used=fmt.total(gpu.memory_used_bytes for gpu in gpus),
            memory_total=fmt.total(gpu.memory_total_bytes for gpu in gpus),
            power=fmt.total(gpu.power_watts for gpu in gpus),
            power_limit=fmt.total(gpu.power_limit_watts for gpu in gpus),
            hottest=max(
                (gpu.temperature_celsius for gpu in gpus if gpu.temperature_celsius is not None), default=None
            ),
            broken=tuple(
                f"GPU {gpu.index} {gpu.state.replace('-', ' ')}"
                for gpu in gpus
                if gpu.state not in ("ok", "none")
            ),
        ),
        problem,
    )


def _mark(host: HostView, run_mark: Mark | None, gpus: GpuTotals | None, problem: str, live: bool) -> Mark:
    if host.link is not Link.LIVE:
        return LINK_MARKS[host.link]
    if run_mark is not None and run_mark.word in ("stalled", "failed"):
        return Mark(run_mark.glyph, "run failed" if run_mark.word == "failed" else "stalled", fmt.TROUBLE)
    if problem:
        return Mark("▲", problem, fmt.TROUBLE)
    if gpus is not None and gpus.broken:
        return Mark("▲", gpus.broken[0], fmt.TROUBLE)
    if host.bad_messages:
        return Mark("◐", fmt.plural(host.bad_messages, "bad message"), fmt.DEGRADED)
    if host.sample is None:
        return Mark("◌", "no data yet", fmt.STARTING)
    return Mark("●", "live", fmt.GOOD) if live else Mark("○", "idle", fmt.QUIET)


def mark_now(host: HostView, facts: HostFacts, now: float) -> Mark:
    """The host's mark at `now` (monotonic): a live host that has gone quiet is degraded."""
    late = host.age(now)
    if host.link is Link.LIVE and late is not None and late > LATE_SECONDS and facts.mark.tone != fmt.TROUBLE:
        return Mark("◐", f"silent {fmt.span(late)}", fmt.DEGRADED)
    return facts.mark


def key_unanswered(host: HostView) -> bool:
    """Whether a new host key was refused. (While the question stands there is no hint yet.)"""
    return host.link is Link.CONFIRM_KEY and bool(host.hint)


def has_problem(host: HostView) -> bool:
    """Whether a person has to help before the host can be used."""
    return host.link in (Link.KEY_CHANGED, Link.REFUSED, Link.AUTH_FAILED) or key_unanswered(host)


def can_connect(host: HostView) -> bool:
    """Whether it makes sense to connect now."""
    return host.link is not Link.LIVE and (host.link is not Link.CONFIRM_KEY or key_unanswered(host))


def mark_tone(link: Link) -> str:
    """The tone of a link that is not live; a live one has none of its own."""
    return LINK_MARKS[link].tone if link in LINK_MARKS else ""


def severity(mark: Mark) -> int:
    """0 trouble, 1 degraded, 2 all else: the order in which hosts rise to the top."""
    return SEVERITY.get(mark.tone, HEALTHY)


def stale(host: HostView, now: float) -> bool:
    """Whether the host's values are too old to be shown as they are."""
    late = host.age(now)
    return host.link is not Link.LIVE or late is None or late > STALE_SECONDS


def gpu_stale_seconds(host: HostView) -> float | None:
    """How far the GPUs' values are behind the host's, when they are: the driver does not answer."""
    if host.sample is None or host.sample.gpu.state == "none":
        return None
    behind = host.sample.time - host.sample.gpu.time
    return behind if behind > STALE_SECONDS else None


def state_words(host: HostView, facts: HostFacts, now: float) -> tuple[str, ...]:
    """The host's state in words, the longest form first."""
    mark = mark_now(host, facts, now)
    if mark.word == "idle":
        ended = facts.run.info.ended if facts.run is not None else None
        if ended is not None:
            return (f"idle {fmt.span(time.time() + host.clock_offset - ended)}", "idle")
    if mark.word == "stalled" and facts.run is not None:
        who = diagnosis_facts.blamed_words(facts.run.info.reason)
        return (f"stalled {who}", "stalled") if who else ("stalled",)
    return (mark.word,)


def next_step(host: HostView, facts: HostFacts, now: float) -> tuple[list[str], str]:
    """What a host that is not live says instead of its values: what is known, and what to do next."""
    known = []
    if mark_tone(host.link) == fmt.TROUBLE:
        known.append(f"since {fmt.clock(host.since)}")
    if host.link in (Link.UNREACHABLE, Link.RECONNECTING) and host.sample is not None:
        known.append(f"last seen {fmt.span(now - host.received)} ago")
    if facts.live_runs and host.link is not Link.LIVE:
        known.append(f"{fmt.plural(facts.live_runs, 'run')} going on there")
    if host.message:
        known.append(host.message)
    elif host.link in (Link.CONNECTING, Link.INSTALLING):
        working = time.time() - host.since
        if working >= 1:
            known.append(fmt.span(working))
    todo = []
    if host.retry_at is not None:
        left = host.retry_at - now
        todo.append(f"retry in {fmt.span(left)}" if left >= 0.5 else "retrying")
    if host.link in (Link.IDLE, Link.UNREACHABLE, Link.RECONNECTING):
        todo.append("c connect now")
    elif host.link in (Link.AUTH_FAILED, Link.REFUSED):
        todo.append("c try again")
    elif host.link is Link.KEY_CHANGED:
        todo.append("K details")
    elif host.link is Link.CONFIRM_KEY:
        todo.append("c look at it again" if key_unanswered(host) else "waiting for your answer")
    return known, " · ".join(todo)

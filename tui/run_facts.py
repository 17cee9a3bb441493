"""What can be said about one run, derived from its views: its state in a sentence, curves, settings."""

from __future__ import annotations

import math
import re
import textwrap
import time
from collections.abc import Mapping, Sequence

from agent import wire

from . import diagnosis_facts, training_facts
from . import formatting as fmt
from .examining import NOTHING, Examination
from .fleet.run_watch import CONSEQUENCES
from .fleet.store import HostView, Link, NodeView, RankView, RunView
from .formatting import Mark

SETTINGS = ("precision", "micro-batch", "accumulation", "learning-rate", "sequence-length")
"""Flags of the built-in trainer that are worth a place in the header."""

HEADLINE_HOSTS = 40
"""Names of a run's hosts that take more cells than these are counted instead."""

LAUNCHER = -1
"""Stands for the launcher of node rank 0 where ranks are counted; -2 for that of node rank 1, and so on."""


def stream(rank: int) -> str:
    """The name of a rank's log stream."""
    return "launcher" if rank <= LAUNCHER else f"rank{rank}"


def stream_words(rank: int) -> str:
    """The same for people."""
    return "launcher" if rank <= LAUNCHER else f"rank {rank}"


def launchers(run: RunView) -> list[int]:
    """What stands for the launchers on the hosts that are known."""
    return [LAUNCHER - node.info.node_rank for _, node in run.parts]


def host_of(run: RunView, rank: int) -> HostView:
    """The host of a rank, or of a launcher; the first one of the run while that is not known."""
    part = run.part_of(rank)
    return part[0] if part is not None else run.host


def unconnected(run: RunView) -> list[str]:
    """Hosts of the run, an older attempt's included, that are not connected."""
    views = [host for host, _ in (*run.parts, *run.older)]
    views += [view for _, view in run.absent if view is not None]
    return list(dict.fromkeys(view.name for view in views if view.link is not Link.LIVE))


def settings(run: RunView) -> dict[str, str]:
    """Flags of `SETTINGS` in the run's command, as they were written."""
    found = {}
    words = run.info.command
    for index, word in enumerate(words):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in SETTINGS:
            found[name] = value if equals else words[index + 1] if index + 1 < len(words) else ""
    return found


def headline(run: RunView) -> list[str]:
    """How the run is set up, least important first."""
    info, said = run.info, run.training
    strategy = info.strategy
    if said is None:
        parts = _planned(settings(run))
    else:
        parts = [part for part in (training_facts.batch(said), said.precision) if part]
        strategy = " ".join(filter(None, (strategy, training_facts.shared(said))))
    hosts = " ".join(run.hosts)
    if len(hosts) > HEADLINE_HOSTS:
        hosts = fmt.plural(len(run.hosts), "host")
    ranks, attempt = fmt.plural(info.world_size, "rank"), f"attempt {info.attempt}"
    if len(run.hosts) > 1:
        return [*parts, strategy, ranks, hosts, attempt]
    return [*parts, hosts, ranks, strategy, attempt]


def _planned(flags: Mapping[str, str]) -> list[str]:
    """What the command says of batch and precision, before the trainer says what it made of it."""
    parts = []
    if "micro-batch" in flags:
        micro = f"batch {flags['micro-batch']}"
        parts.append(f"{micro} × {flags['accumulation']}" if flags.get("accumulation", "1") != "1" else micro)
    return [*parts, *(value for name, value in flags.items() if name == "precision")]


def elapsed(run: RunView) -> float:
    """Seconds that the current attempt has taken, or took."""
    end = run.ended if run.ended is not None else time.time() + run.host.clock_offset
    return max(0.0, end - run.info.started)


def pace(run: RunView) -> float | None:
    """Seconds a step of the slowest rank."""
    known = [rank.sample.step_seconds for rank in run.ranks.values() if rank.sample.step_seconds is not None]
    return max(known, default=None)


def quiet_seconds(run: RunView) -> float | None:
    """For how long no rank has made a step, as far as is known."""
    ages = []
    for host, node in run.parts:
        ours = time.time() + host.clock_offset
        times = (rank.sample.step_time for rank in node.ranks.values())
        ages += [max(0.0, ours - at) for at in times if at is not None]
    return min(ages, default=None)


def asking(found: Examination, now: float) -> str:
    """How new what is known about a run that stalls is."""
    if found.asking:
        return "◌ looking at all ranks"
    if found.error is not None:
        return fmt.sentences(f"its ranks cannot be looked at: {found.error.message}", found.error.hint)
    return f"looked {fmt.age(now - found.received)} ago" if found.report is not None else ""


def state_sentence(run: RunView, now: float, found: Examination = NOTHING) -> tuple[Mark, str, str, str]:
    """(mark, how long, what happened or is going on, keys that make sense next). `now` is monotonic.

    `found` is what is known about a run that stalls.
    """
    info = run.info
    state, reason = run.standing()
    reason = shorter(reason, run.id)
    mark = fmt.run_mark(state)
    took = fmt.duration(elapsed(run))
    silent = unasked(run)
    if state == "unreachable" or (silent and state in ("starting", "running", "stalled")):
        if state != "unreachable":
            mark = Mark("◐", silent[0].link.value, fmt.DEGRADED)
        since = min((host.since for host in silent), default=time.time())
        return mark, fmt.clock(since), _last_known(run, silent, now), "c connect now   l logs so far"
    if state == "starting":
        return mark, took, reason or f"{len(run.ranks)} of {info.world_size} ranks have started.", ""
    if state == "running":
        return mark, took, reason or _going(run), ""
    if state == "stopping":
        return mark, "", reason or "Its processes are asked to end; those that do not are killed.", ""
    restart = f"r restart as attempt {info.attempt + 1}"
    if state == "stalled":
        paused = stopped(run)
        resume = f"C let {diagnosis_facts.ranks_words(paused)} go on   " if paused else ""
        report = found.current(run, now)
        if report is not None and report.diagnosis.alarming:
            took = fmt.duration(found.since(report, now))
            reason = shorter(report.diagnosis.sentence, run.id)
        else:
            quiet = quiet_seconds(run)
            took = took if quiet is None else fmt.duration(quiet)
        return mark, took, reason, f"{resume}d evidence   {restart}   S stop"
    why = "d diagnose   " if state == "failed" else ""
    if run.live:
        return mark, took, reason, f"{why}l logs   S stop   {restart}"
    ended = f"{fmt.clock(run.ended)} after {took}" if run.ended is not None else ""
    code = "" if run.exit_code is None or run.exit_code == 0 else f" ({fmt.exit_words(run.exit_code)})"
    what = reason or {"finished": "All ranks ended with exit code 0."}.get(state, "")
    return mark, ended + code, what, f"{why}l logs   {restart}"


def shorter(text: str, run_id: str) -> str:
    """`text` with the files of a run named from its folder on: the path of that fills a small terminal."""
    return re.sub(rf"[^\s'\"(]*/runs/{re.escape(run_id)}/", "", text)


def host_lines(run: RunView, now: float, *, examined: bool = False) -> list[tuple[str, Mark, str]]:
    """(host, its state, more about it) of all hosts of a run on several, unless all are equally well.

    Of a run that was `examined` one verdict says more than what each host thinks of its own ranks. Hosts on
    which an older attempt still lives come last.
    """
    told = run.reason
    heard = {node.info.node_rank: _part_line(host, node, now, told) for host, node in run.parts}
    states = {mark.word for _, mark, _ in heard.values()}
    alike = len(states) == 1 and not run.absent and not states & {"failed", "unreachable"}
    if examined and states <= {"stalled", "running"}:
        alike = not run.absent
    if not run.leftovers and (len(run.hosts) == 1 or alike):
        return []
    absent = (_absent_line(run, node, view) for node, view in run.absent)
    lines = [heard[rank] if rank in heard else next(absent) for rank in range(len(run.hosts))]
    for host, node in run.older:
        if node.live:
            mark = Mark("▲", f"attempt {node.info.attempt}", fmt.TROUBLE)
            lines.append((host.name, mark, "ranks of this older attempt still live there: S stops them"))
    return lines


def _part_line(host: HostView, node: NodeView, now: float, told: str) -> tuple[str, Mark, str]:
    mark = fmt.run_mark(host.run_state(node))
    steps = [] if node.step is None else [f"step {fmt.count(node.step)}"]
    if node.live and host.link is not Link.LIVE:
        if mark.word != "unreachable":
            mark = Mark("◐", host.link.value, fmt.DEGRADED)
        if host.sample is not None:
            steps.append(f"last seen {fmt.span(now - host.received)} ago")
        return host.name, mark, " · ".join([*steps, *([host.message] if host.message else [])])
    if not node.live and node.info.ended is not None:
        steps.insert(0, fmt.clock(node.info.ended - host.clock_offset))
    reason = node.info.reason
    if reason and reason not in told:  # the run's own sentence says it already
        steps.append(reason)
    return host.name, mark, " · ".join(steps)


def _absent_line(run: RunView, node: wire.Node, view: HostView | None) -> tuple[str, Mark, str]:
    if view is None:
        return node.name, Mark("?", "unknown", fmt.NOT_KNOWN), "it is not among your hosts: a adds one"
    if not view.ready:
        word = "not heard of" if view.link is Link.IDLE else view.link.value
        return view.name, Mark("?", word, fmt.NOT_KNOWN), view.message
    if view.host_id != node.host_id:
        return view.name, Mark("✕", "replaced", fmt.TROUBLE), "another machine answers at its address"
    if run.state in ("starting", "running"):
        return view.name, Mark("◌", "starting", fmt.STARTING), ""
    return view.name, Mark("✕", "forgotten", fmt.TROUBLE), "it knows nothing of this attempt"


def unasked(run: RunView) -> list[HostView]:
    """Hosts of the run that cannot be asked now although something of it may live there."""
    heard = [host for host, node in run.parts if node.live and host.link is not Link.LIVE]
    return heard + [view for _, view in run.absent if view is not None and not view.ready]


def _last_known(run: RunView, silent: Sequence[HostView], now: float) -> str:
    """What is known of a run whose hosts cannot all be asked; of several there is a line each besides."""
    names = fmt.listed([host.name for host in silent]) or run.host.name
    if len(run.hosts) > 1:
        return f"{names} cannot be asked; ranks may go on there."
    host, node = run.parts[0]
    seen = now - node.received if host.sample is None else now - host.received
    step = "" if run.step is None else f" at step {fmt.count(run.step)}"
    return (
        f"{names} cannot be asked; {fmt.span(seen)} ago the run was {node.info.state}{step}. "
        "It goes on without us."
    )


def _going(run: RunView) -> str:
    ranks = run.ranks
    parts = ["no step yet" if run.step is None else f"step {fmt.count(run.step)}"]
    if run.step is not None and run.training is not None and run.training.steps:
        parts[0] += f" of {fmt.count(run.training.steps)}"
    seconds = pace(run)
    if seconds is not None:
        parts.append(f"{fmt.step_seconds(seconds)} s/step")
    gone = sum(rank.sample.state in ("exited", "lost") for rank in ranks.values())
    if gone:
        parts.append(f"{gone} of {len(ranks)} ranks have ended")
    phases = {rank.sample.phase for rank in ranks.values() if rank.sample.phase}
    if len(phases) == 1:
        parts.append(next(iter(phases)))
    return " · ".join(parts)


def wrapped(text: str, width: int, lines: int) -> list[str]:
    """`text` on at most `lines` lines of `width` cells."""
    return textwrap.wrap(text, max(20, width), max_lines=lines, placeholder=" …") if text else []


def blamed(run: RunView) -> list[int]:
    """Ranks that the reason of a run begins with, of one that stalls or has failed; else none."""
    state, reason = run.standing()
    if state not in ("stalled", "failed"):
        return []
    host, _, rest = reason.partition(": ")
    ranks = diagnosis_facts.blamed(rest if host in run.hosts else reason)
    return [rank for rank in ranks if rank in run.ranks]


def stopped(run: RunView) -> list[int]:
    """Ranks that a signal has stopped, so that SIGCONT is all that they need to go on."""
    if not run.live:
        return []
    samples = [rank.sample for _, rank in sorted(run.ranks.items())]
    return [each.rank for each in samples if each.state == "running" and each.process_state == "T"]


def culprits(run: RunView) -> list[int]:
    """Ranks that failed by themselves, not because another one did or somebody stopped the run."""
    codes = {number: rank.sample.exit_code for number, rank in sorted(run.ranks.items())}
    return [number for number, code in codes.items() if code not in (None, 0, *CONSEQUENCES)]


def end_mark(rank: RankView, *, live: bool, ended_for_another: bool, stopped: bool = False) -> Mark:
    """The mark of a rank: the end of one that was ended for another is not as loud as its cause.

    `live` is whether the run lives on its host, `stopped` whether somebody stopped it.
    """
    sample = rank.sample
    mark = fmt.rank_mark(sample.state, sample.exit_code, stopped=stopped)
    if sample.state == "exited" and sample.exit_code in CONSEQUENCES and ended_for_another:
        return Mark("○", mark.word, fmt.QUIET)
    if sample.state in ("running", "starting") and not live:
        # The run is over and nobody said how this rank went.
        return Mark("?", "not seen", fmt.NOT_KNOWN)
    return mark


# --- curves ------------------------------------------------------------------------------------------------


def metric(run: RunView, key: str) -> list[tuple[float, float | None]]:
    """`(step, value)` of the run's progress records that have both; what is no finite number is None."""
    points: list[tuple[float, float | None]] = []
    for record in run.progress:
        step = record.get("step")
        if key in record and isinstance(step, (int, float)) and not isinstance(step, bool):
            points.append((float(step), training_facts.finite(record[key])))
    return points


def latest(run: RunView, key: str) -> wire.Scalar:
    """The newest value of `key` that rank 0 reported, whatever it is."""
    return next((record[key] for record in reversed(run.progress) if key in record), None)


def uses_gpus(run: RunView) -> bool:
    """Whether any of the run's ranks uses a GPU."""
    return any(_gpus(node.ranks) for _, node in run.parts)


def _gpus(ranks: Mapping[int, RankView]) -> list[int]:
    """Indices of the GPUs that ranks on one host use."""
    return sorted({rank.sample.gpu for rank in ranks.values() if rank.sample.gpu is not None})


def utilization(run: RunView) -> list[tuple[float, float | None]]:
    """`(time, percent)` of the run's GPUs together, or of its hosts' cores, while the attempt lasted.

    Times are those of the first host's clock.
    """
    columns = [_utilization(host, _gpus(node.ranks)) for host, node in run.parts]
    columns = [column for column in columns if column]  # a host that has not said anything yet
    shortest = min(map(len, columns), default=0)
    rows = zip(*(column[-shortest:] for column in columns), strict=True) if shortest else ()
    points = [(row[0][0], fmt.mean(value for _, value in row)) for row in rows]
    end = math.inf if run.ended is None else run.ended
    return [(at, value) for at, value in points if run.info.started <= at <= end]


def _utilization(host: HostView, gpus: Sequence[int]) -> list[tuple[float, float | None]]:
    series = [host.gpu_utilization[index] for index in gpus if index in host.gpu_utilization]
    if not series:
        return list(zip(host.cpu.times, host.cpu.values, strict=True))
    shortest = min(len(each) for each in series)
    times = list(series[0].times)[-shortest:]
    columns = zip(*(list(each.values)[-shortest:] for each in series), strict=True)
    return [(at, fmt.mean(column)) for at, column in zip(times, columns, strict=True)]

"""What can be said about one run, derived from its views: its state in a sentence, curves, settings."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Sequence

from agent import wire

from . import formatting as fmt
from .fleet.run_watch import CONSEQUENCES
from .fleet.store import HostView, Link, RankView, RunView
from .formatting import Mark

SETTINGS = ("precision", "micro-batch", "accumulation", "learning-rate", "sequence-length")
"""Flags of the built-in trainer that are worth a place in the header."""

LAUNCHER = -1
"""Stands for the launcher's own output where ranks are counted."""


def stream(rank: int) -> str:
    """The name of a rank's log stream."""
    return "launcher" if rank == LAUNCHER else f"rank{rank}"


def stream_words(rank: int) -> str:
    """The same for people."""
    return "launcher" if rank == LAUNCHER else f"rank {rank}"


def settings(run: RunView) -> dict[str, str]:
    """Flags of `SETTINGS` in the run's command, as they were written."""
    found = {}
    words = run.info.command
    for index, word in enumerate(words):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in SETTINGS:
            found[name] = value if equals else words[index + 1] if index + 1 < len(words) else ""
    return found


def headline(host: HostView, run: RunView) -> list[str]:
    """How the run is set up, least important first."""
    info, flags = run.info, settings(run)
    parts = []
    if "micro-batch" in flags:
        micro = f"batch {flags['micro-batch']}"
        parts.append(f"{micro} × {flags['accumulation']}" if flags.get("accumulation", "1") != "1" else micro)
    parts += [value for name, value in flags.items() if name == "precision"]
    return [*parts, host.name, fmt.plural(info.world_size, "rank"), info.strategy, f"attempt {info.attempt}"]


def elapsed(host: HostView, run: RunView) -> float:
    """Seconds that the current attempt has taken, or took."""
    end = run.info.ended if run.info.ended is not None else time.time() + host.clock_offset
    return max(0.0, end - run.info.started)


def pace(run: RunView) -> float | None:
    """Seconds a step of the slowest rank."""
    known = [rank.sample.step_seconds for rank in run.ranks.values() if rank.sample.step_seconds is not None]
    return max(known, default=None)


def state_sentence(host: HostView, run: RunView, now: float) -> tuple[Mark, str, str, str]:
    """(mark, how long, what happened or is going on, keys that make sense next). `now` is monotonic."""
    info = run.info
    mark = fmt.run_mark(host.run_state(run))
    took = fmt.duration(elapsed(host, run))
    reason = info.reason
    if mark.word == "unreachable" or (run.live and host.link is not Link.LIVE):
        seen = fmt.span(now - run.received) if host.sample is None else fmt.span(now - host.received)
        what = f"{host.name} cannot be asked; {seen} ago the run was {info.state}"
        what += "." if run.step is None else f" at step {fmt.count(run.step)}."
        what += " It goes on without us."
        if mark.word != "unreachable":
            mark = Mark("◐", host.link.value, fmt.DEGRADED)
        return mark, fmt.clock(host.since), what, "c connect now   l logs so far"
    if info.state == "starting":
        ready = len(run.ranks)
        return mark, took, reason or f"{ready} of {info.world_size} ranks have started.", ""
    if info.state == "running":
        return mark, took, reason or _going(run), ""
    if info.state == "stopping":
        return mark, "", reason or "Its processes are asked to end; those that do not are killed.", ""
    ended = f"{fmt.clock(info.ended)} after {took}" if info.ended is not None else ""
    code = "" if info.exit_code is None or info.exit_code == 0 else f" ({fmt.exit_words(info.exit_code)})"
    what = reason or {"finished": "All ranks ended with exit code 0."}.get(info.state, "")
    return mark, ended + code, what, "l logs   r restart as attempt " + str(info.attempt + 1)


def _going(run: RunView) -> str:
    parts = ["no step yet" if run.step is None else f"step {fmt.count(run.step)}"]
    seconds = pace(run)
    if seconds is not None:
        parts.append(f"{fmt.step_seconds(seconds)} s/step")
    gone = sum(rank.sample.state in ("exited", "lost") for rank in run.ranks.values())
    if gone:
        parts.append(f"{gone} of {len(run.ranks)} ranks have ended")
    phases = {rank.sample.phase for rank in run.ranks.values() if rank.sample.phase}
    if len(phases) == 1:
        parts.append(next(iter(phases)))
    return " · ".join(parts)


def wrapped(text: str, width: int, lines: int) -> list[str]:
    """`text` on at most `lines` lines of `width` cells."""
    return textwrap.wrap(text, max(20, width), max_lines=lines, placeholder=" …") if text else []


def culprits(run: RunView) -> list[int]:
    """Ranks that failed by themselves, not because another one did or somebody stopped the run."""
    codes = {number: rank.sample.exit_code for number, rank in sorted(run.ranks.items())}
    return [number for number, code in codes.items() if code not in (None, 0, *CONSEQUENCES)]


def end_mark(run: RunView, rank: RankView) -> Mark:
    """The mark of a rank: the end of one that was ended for another is not as loud as its cause."""
    sample = rank.sample
    mark = fmt.rank_mark(sample.state, sample.exit_code)
    ended_for_another = run.info.state in ("stopped", "stopping") or bool(culprits(run))
    if sample.state == "exited" and sample.exit_code in CONSEQUENCES and ended_for_another:
        return Mark("○", mark.word, fmt.QUIET)
    if sample.state in ("running", "starting") and not run.live:
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
            points.append((float(step), finite(record[key])))
    return points


def finite(value: wire.Scalar) -> float | None:
    """`value` if it is a finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def latest(run: RunView, key: str) -> wire.Scalar:
    """The newest value of `key` that rank 0 reported, whatever it is."""
    return next((record[key] for record in reversed(run.progress) if key in record), None)


def gpus_of(run: RunView) -> list[int]:
    """Indices of the GPUs that the run's ranks use."""
    return sorted({rank.sample.gpu for rank in run.ranks.values() if rank.sample.gpu is not None})


def utilization(host: HostView, run: RunView) -> list[tuple[float, float | None]]:
    """`(time, percent)` of the run's GPUs together, or of the host's cores, while the attempt lasted."""
    end = math.inf if run.info.ended is None else run.info.ended
    points = _utilization(host, gpus_of(run))
    return [(at, value) for at, value in points if run.info.started <= at <= end]


def _utilization(host: HostView, gpus: Sequence[int]) -> list[tuple[float, float | None]]:
    series = [host.gpu_utilization[index] for index in gpus if index in host.gpu_utilization]
    if not series:
        return list(zip(host.cpu.times, host.cpu.values, strict=True))
    shortest = min(len(each) for each in series)
    times = list(series[0].times)[-shortest:]
    columns = zip(*(list(each.values)[-shortest:] for each in series), strict=True)
    return [(at, fmt.mean(column)) for at, column in zip(times, columns, strict=True)]

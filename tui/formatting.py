"""How numbers, times and states are written: the same everywhere, in one unit a column.

Pure functions from values to text. `–` says that a thing does not apply, `?` that it is not known.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

NONE = "–"
"""A thing that does not apply here."""

UNKNOWN = "?"
"""A thing that exists but whose value is not known."""

GIB = 1024.0**3

EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
LEVELS = "▁▂▃▄▅▆▇"


class Mark(NamedTuple):
    """A state as it is shown: a glyph, a word, and a tone (see `tui.theme.TONES`) for the colour."""

    glyph: str
    word: str
    tone: str


TROUBLE, DEGRADED, GOOD, QUIET, STARTING, NOT_KNOWN = (
    "trouble", "degraded", "good", "quiet", "starting", "unknown",
)  # fmt: skip

RUN_MARKS = {
    "stalled": Mark("▲", "stalled", TROUBLE),
    "failed": Mark("✕", "failed", TROUBLE),
    "unreachable": Mark("✕", "unreachable", TROUBLE),
    "stopping": Mark("◐", "stopping", DEGRADED),
    "running": Mark("●", "running", GOOD),
    "finished": Mark("○", "finished", QUIET),
    "stopped": Mark("○", "stopped", QUIET),
    "starting": Mark("◌", "starting", STARTING),
}
"""The marks of the run states of `agent.wire.RUN_STATES`."""

PROCESS_WORDS = {
    "R": "R running",
    "S": "S sleeping",
    "D": "D in kernel",
    "T": "T stopped",
    "t": "t traced",
    "Z": "Z dead",
    "I": "I idle",
}
"""What the state letters of /proc/PID/stat mean."""


def run_mark(state: str) -> Mark:
    """The mark of a run's state; a state that is not known here says so."""
    return RUN_MARKS.get(state, Mark("?", state or "unknown", NOT_KNOWN))


def rank_mark(state: str, exit_code: int | None, *, stopped: bool = False) -> Mark:
    """The mark of a rank's state (see `agent.wire.RANK_STATES`); `stopped` is whether its run was."""
    if state == "running":
        return Mark("●", "running", GOOD)
    if state == "starting":
        return Mark("◌", "starting", STARTING)
    if state == "lost" and stopped:
        return Mark("○", "stopped", QUIET)  # SIGTERM ends a plain script without a word
    if state == "lost":
        return Mark("✕", "lost", TROUBLE)
    if state == "exited":
        if exit_code == 0:
            return Mark("○", "done", QUIET)
        return Mark("✕", "exited" if exit_code is None else exit_words(exit_code), TROUBLE)
    return Mark("?", state or "unknown", NOT_KNOWN)


def exit_words(code: int) -> str:
    """An exit code as people say it: `exit 1`, or `signal 9` for a process that was killed."""
    return f"signal {-code}" if code < 0 else f"exit {code}"


# --- numbers ---------------------------------------------------------------------------------------------


def count(value: int | None) -> str:
    """A whole number with its thousands apart: 12431 is `12 431`."""
    return UNKNOWN if value is None else f"{value:,}".replace(",", " ")


def percent(value: float | None) -> str:
    """`97 %`."""
    return UNKNOWN if value is None else f"{value:.0f} %"


def gib(used: float | None, total: float | None = None) -> str:
    """Bytes in GiB: `21.9 G`, or `21.9/24 G` with a total."""
    left = UNKNOWN if used is None else f"{used / GIB:.1f}" if used < 99.95 * GIB else f"{used / GIB:.0f}"
    return f"{left} G" if total is None else f"{left}/{_short(total / GIB)} G"


def size(value: float | None) -> str:
    """Bytes in the unit that keeps it short: `812 B`, `41.2 K`, `3.5 M`, `21.9 G`."""
    if value is None:
        return UNKNOWN
    if value < 1000:
        return f"{value:.0f} B"
    for unit in "KMGT":
        value /= 1024
        if value < 999.5:
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{value / 1024:.0f} P"


def si(value: float | None, *, short: bool = False) -> str:
    """A rate or count in SI steps, three digits: `412`, `41.2 k`; `short` drops zeros at the end."""
    if value is None:
        return UNKNOWN
    magnitude = abs(value)
    for limit, divisor, unit in ((999.5, 1.0, ""), (999.5e3, 1e3, " k"), (999.5e6, 1e6, " M")):
        if magnitude < limit:
            return _three_digits(value / divisor, short) + unit
    return _three_digits(value / 1e9, short) + " G"


def kilowatts(used: float | None, limit: float | None) -> str:
    """Watts in kW: `3.1/3.6 kW`."""
    left = UNKNOWN if used is None else f"{used / 1000:.1f}"
    return f"{left} kW" if limit is None else f"{left}/{limit / 1000:.1f} kW"


def watts(used: float | None, limit: float | None = None) -> str:
    """`412 W`, or `412/450 W`."""
    left = UNKNOWN if used is None else f"{used:.0f}"
    return f"{left} W" if limit is None else f"{left}/{limit:.0f} W"


def number(value: float | None) -> str:
    """A measured number such as a loss: four significant digits, never in exponents that look precise."""
    if value is None:
        return UNKNOWN
    magnitude = abs(value)
    if magnitude >= 1e5 or 0 < magnitude < 1e-3:
        return f"{value:.2e}"
    for limit, digits in ((10, 3), (100, 2), (1000, 1)):
        if magnitude < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def step_seconds(value: float | None) -> str:
    """Seconds a step, for a column of its own: `0.412`, `3.20`, `41.3`."""
    if value is None:
        return UNKNOWN
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _short(value: float) -> str:
    """At most four characters: one decimal below 100 unless it says nothing."""
    text = f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
    return text[:-2] if text.endswith(".0") else text


def _three_digits(value: float, short: bool) -> str:
    magnitude = abs(value)
    if short:
        return f"{value:.3g}"
    if magnitude == 0 or magnitude >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"


# --- times -----------------------------------------------------------------------------------------------


def age(seconds: float | None) -> str:
    """How old a value is, rounded up so that it is never claimed to be newer: `1 s`, `4 min`, `3 h`."""
    if seconds is None:
        return NONE
    whole = max(1, -int(-seconds // 1))
    return span(float(whole))


def span(seconds: float) -> str:
    """A duration in its largest unit: `42 s`, `4 min`, `3 h`, `2 d`."""
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"


def duration(seconds: float) -> str:
    """A duration in two units: `42 s`, `4 min 12 s`, `3 h 05 min`, `2 d 4 h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def clock(wall: float, now: float | None = None) -> str:
    """When something happened, in local time: `14:02` within a day, else `Mar 03 14:02`."""
    now = time.time() if now is None else now
    form = "%H:%M" if abs(now - wall) < 20 * 3600 else "%b %d %H:%M"
    return time.strftime(form, time.localtime(wall))


# --- bars and text ---------------------------------------------------------------------------------------


def bar(fraction: float | None, width: int) -> str:
    """A horizontal bar of `width` cells in steps of an eighth; a sliver shows that zero was measured."""
    if fraction is None or width <= 0:
        return " " * max(0, width)
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    full, rest = divmod(max(1, eighths), 8)
    return ("█" * full + EIGHTHS[rest]).ljust(width)


def level(percent_value: float) -> str:
    """One cell that stands for 0-100 %: `▁` to `▇`, so that rows of them stay apart."""
    return LEVELS[max(0, min(len(LEVELS) - 1, int(percent_value * len(LEVELS) / 100)))]


def fold(values: Sequence[float | None], cells: int) -> list[float | None]:
    """At most `cells` values: neighbours are averaged when there are more; None where none is known."""
    if len(values) <= cells:
        return list(values)
    if cells <= 0:
        return []
    edges = [index * len(values) // cells for index in range(cells + 1)]
    return [mean(values[left:right]) for left, right in pairwise(edges)]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known, or None."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def total(values: Iterable[float | None]) -> float | None:
    """The sum of those that are known, or None when none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def clip(text: str, width: int) -> str:
    """`text` in at most `width` cells, its end replaced by `…` when it is cut."""
    if width <= 0:
        return ""
    if len(text) <= width and text.isascii():
        return text
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…"


def pad(text: str, width: int, right: bool = False) -> str:
    """`text` clipped and padded to exactly `width` cells, to the right side when `right`."""
    text = clip(text, width)
    missing = width - (len(text) if text.isascii() else cell_len(text))
    return " " * missing + text if right else text + " " * missing


def choose(options: Sequence[str], width: int) -> str:
    """The first of `options` (longest first) that fits into `width` cells, else the last one clipped."""
    for option in options:
        if cell_len(option) <= width:
            return option
    return clip(options[-1], width) if options else ""


def join_fitting(parts: Sequence[str], width: int) -> str:
    """As many of `parts` as fit into `width`, in their order, joined; the last one may be cut."""
    shown: list[str] = []
    left = width
    for part in parts:
        room = left - (3 if shown else 0)
        if cell_len(part) <= room:
            shown.append(part)
            left = room - cell_len(part)
        elif room >= 16:
            shown.append(clip(part, room))
            break
    return " · ".join(shown)


def sentences(message: str, hint: str = "") -> str:
    """What went wrong and what to do next, as sentences whether or not they came with their full stops."""
    return " ".join(
        text if text[-1] in ".!?:" else text + "." for text in (message.strip(), hint.strip()) if text
    )


def plural(number_of: int, noun: str) -> str:
    """`1 host`, `4 hosts`."""
    return f"{count(number_of)} {noun}" + ("" if number_of == 1 else "s")


def span_of(first: int, last: int, noun: str = "rank") -> str:
    """`rank 3`, `ranks 0–7`."""
    return f"{noun} {first}" if first == last else f"{noun}s {first}–{last}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """`a`, `a and b`, `a, b and c`; of more than `most` the first ones and how many more."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def short_gpu_name(name: str) -> str:
    """A GPU's name without what every name has: `NVIDIA GeForce RTX 4090` is `RTX 4090`."""
    noise = ("NVIDIA", "GeForce", "Tesla", "Quadro", "Generation")
    words = [word for word in name.split() if word not in noise]
    return " ".join(words) or name

"""What is said about a log: its title line, and the sentence in the place of output that is not there."""

from __future__ import annotations

from .. import formatting as fmt
from ..fleet.log_feed import FeedState, LogFeed
from ..fleet.log_source import Condition
from ..fleet.store import Link
from .log_reader import Reader
from .toned import Piece, length

PASSING = {link.value for link in (Link.CONNECTING, Link.INSTALLING, Link.RECONNECTING)}
"""States of a connection that end by themselves."""


def empty(feed: LogFeed, condition: Condition) -> str:
    """Why there is no output. Empty when there is some."""
    label = feed.source.label
    if feed.window.size:
        return ""
    if condition.trouble:
        return f"No connection to the host ({condition.trouble}). What {label} printed comes when it is back."
    if feed.problem is not None:
        return " ".join(part for part in (f"{feed.problem.message}.", feed.problem.hint) if part)
    if feed.state is FeedState.OPENING:
        return f"Asking for the log of {label} …"
    if condition.ended or feed.ended:
        return f"{label} printed nothing."
    if feed.absent:
        return f"{label} has no log yet: it is not started."
    return f"{label} has not printed anything yet."


def title(feed: LogFeed, reader: Reader, condition: Condition, note: str, width: int) -> list[Piece]:
    """One line: which log on the left, how it stands on the right, a rule between."""
    left: list[Piece] = [(f" {feed.source.label} log ", "strong")]
    parts = _parts(feed, reader, condition, note)
    while True:
        right: list[Piece] = [(" ", "")]
        for part in parts:
            right += [(" · ", "quiet"), part] if len(right) > 1 else [part]
        room = width - length(left) - length(right) - 3
        if room > 0 or len(parts) < 2:
            break
        parts.pop()
    return [*left, ("─" * max(1, room), "quiet"), *right, (" ──", "quiet")]


def _parts(feed: LogFeed, reader: Reader, condition: Condition, note: str) -> list[Piece]:
    """How the log stands, what matters most first."""
    parts: list[Piece] = []
    if condition.trouble:
        since = f" since {fmt.clock(condition.since)}" if condition.since is not None else ""
        glyph, tone = ("◐", fmt.DEGRADED) if condition.trouble in PASSING else ("✕", fmt.TROUBLE)
        parts.append((f"{glyph} {condition.trouble}{since}", tone))
        parts.append(("showing what was loaded", ""))
    elif feed.problem is not None:
        parts.append((f"✕ {feed.problem.message}", fmt.TROUBLE))
    if note:
        parts.append((note, fmt.DEGRADED))
    size = fmt.size(feed.window.size)
    if not reader.following:
        parts.append((behind(reader), "strong"))
        parts.append((f"{position(reader)} of {size}", "quiet"))
    elif condition.ended or feed.ended:
        parts.append((f"run ended, {size}", "quiet"))
    elif condition.trouble:
        parts.append((size, "quiet"))
    else:
        parts.append(("follow", fmt.GOOD))
        parts.append(("0 behind", fmt.QUIET))
    return parts


def behind(reader: Reader) -> str:
    """How much there is below what is shown: lines where they can be counted, else bytes."""
    rest = reader.window.size - reader.end
    if rest <= 0:
        return "0 behind"
    lines = reader.line_end_count()
    if lines is None:
        return f"{fmt.size(rest)} behind"
    return f"{fmt.count(max(1, lines))} behind"


def position(reader: Reader) -> str:
    """How far down in the log the screen's end is."""
    size = reader.window.size
    return f"{min(99, reader.end * 100 // size) if reader.end < size else 100} %" if size else "0 %"


def searching(scanned_to: int, backward: bool) -> str:
    """A search that takes its time."""
    return f"searching {'up' if backward else 'down'}, at {fmt.size(scanned_to)} … esc stops"

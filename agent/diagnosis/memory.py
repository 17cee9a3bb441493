"""How a rank's memory grew before it ran out, in words."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from .evidence import Memory, Rank

GROWN = 1.2
"""So many times as much as before is growth."""

NEAR = 0.02
"""Of the growth: what is this little above the least is not growth yet."""


class Growth(NamedTuple):
    """From how many bytes to how many, in how many seconds."""

    low: int
    high: int
    seconds: float


def growth(points: Sequence[Memory]) -> Optional[Growth]:
    """The growth to the most that was ever seen; None where there was none. `points` are oldest first."""
    if len(points) < 2:
        return None
    high = max(point.rss_bytes for point in points)
    rise = list(points[: 1 + max(index for index, point in enumerate(points) if point.rss_bytes == high)])
    low = min(point.rss_bytes for point in rise)
    if high < GROWN * low:
        return None
    start = max(index for index, point in enumerate(rise) if point.rss_bytes <= low + NEAR * (high - low))
    return Growth(rise[start].rss_bytes, high, rise[-1].time - rise[start].time)


def words(rank: Rank, limit: Optional[int]) -> str:
    """`grew from 0.6 GB to 3.9 GB in 40 s; the limit is 4.0 GB`; empty where nothing is known."""
    if not rank.memory:
        return ""
    grown = growth(rank.memory)
    most = max(point.rss_bytes for point in rank.memory)
    text = f"had {_size(most)} of memory"
    if grown is not None:
        text = f"grew from {_size(grown.low)} to {_size(grown.high)} in {max(1.0, grown.seconds):.0f} s"
    return text + (f"; the limit is {_size(limit)}" if limit else "")


def _size(value: int) -> str:
    return f"{value / 2**30:.1f} GB" if value >= 2**30 / 10 else f"{value / 2**20:.0f} MB"

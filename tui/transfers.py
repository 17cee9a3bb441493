"""How a download is spoken of, and where it goes: the same on the command line and in the app."""

from __future__ import annotations

from pathlib import Path

from . import formatting as fmt
from .fleet.download import Progress


def line(progress: Progress, seconds: float) -> str:
    """`45 %  90 MiB of 200 MiB  95 MiB/s  2 s left`, `seconds` after the beginning."""
    percent = 100 * progress.done // progress.total if progress.total else 100
    text = f"{percent} %  {fmt.size(progress.done)} of {fmt.size(progress.total)}"
    rate = progress.received / seconds if seconds > 0 else 0
    if rate >= 1:
        left = (progress.total - progress.done) / rate
        text += f"  {fmt.size(round(rate))}/s  {fmt.duration(left)} left"
    return text


def destination(dest: Path, name: str) -> Path:
    """Where `name` goes: into `dest` when that is a folder, else it is called so."""
    return dest / name if dest.is_dir() else dest

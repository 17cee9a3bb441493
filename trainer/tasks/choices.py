"""What the small examples share: a size by its name, and a word for options that mean nothing to them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from ..config import Config
from ..errors import UsageError

Size = TypeVar("Size")


def chosen(cfg: Config, task: str, sizes: Mapping[str, Size]) -> Size:
    """The size that the options name; by default the first. Raises UsageError."""
    name = cfg.size or next(iter(sizes))
    if name not in sizes:
        close = difflib.get_close_matches(name, sizes, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sizes)}"
        raise UsageError(f"--size {name}: {task} has no such size; {hint}")
    return sizes[name]


def refuse_data_dir(cfg: Config, task: str) -> None:
    """Raise UsageError when the options name a folder: these examples make their data themselves."""
    if cfg.data_dir:
        raise UsageError(
            f"--data-dir {cfg.data_dir}: {task} makes its own data; leave it out, or write a job file that "
            "reads the folder"
        )

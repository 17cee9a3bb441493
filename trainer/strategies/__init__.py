"""How ranks share the work: one module a strategy behind the interface in `base`, found here by name."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config import Config
from ..errors import UsageError

if TYPE_CHECKING:
    from .base import Strategy


class Entry(NamedTuple):
    """Where a strategy is: module here, class in it. Only the module that is used is loaded."""

    module: str
    cls: str
    oldest_torch: tuple[int, int] = (2, 4)
    framework: str = "torch"

    def load(self) -> Any:
        """The class."""
        return getattr(importlib.import_module(f"{PACKAGES[self.framework]}.{self.module}"), self.cls)


PACKAGES = {"torch": __name__, "tensorflow": f"{__name__.rpartition('.')[0]}.tensorflow"}
"""The framework that a strategy belongs to, and the package that holds its strategies."""


STRATEGIES = {
    "ddp": Entry("ddp", "DdpStrategy"),
    "fsdp": Entry("fsdp", "FsdpStrategy", (2, 6)),
    "hsdp": Entry("fsdp", "HsdpStrategy", (2, 6)),
    "zero1": Entry("zero", "Zero1Strategy", (2, 6)),
    "zero2": Entry("zero", "Zero2Strategy", (2, 6)),
    "zero3": Entry("zero", "Zero3Strategy", (2, 6)),
    "tp": Entry("tp", "TpStrategy", (2, 6)),
    "fsdp+tp": Entry("tp", "FsdpTpStrategy", (2, 6)),
    "pp": Entry("pp", "PpStrategy", (2, 7)),
    "dp": Entry("dp", "DpStrategy"),
    "horovod": Entry("horovod", "HorovodStrategy"),
    "tf-mirrored": Entry("mirrored", "Mirrored", framework="tensorflow"),
    "tf-parameter-server": Entry("parameter_server", "ParameterServer", framework="tensorflow"),
}

OPTIONS = {
    "reshard_after_forward": ("fsdp", "hsdp", "fsdp+tp"),
    "shard_ranks": ("hsdp",),
    "tensor_parallel": ("fsdp+tp",),
    "pipeline_schedule": ("pp",),
    "offload": ("zero1", "zero2", "zero3"),
    "bucket_mb": ("ddp", "zero1", "zero2", "zero3", "horovod"),
    "gradient_compression": ("ddp", "horovod"),
    # Copies of DataParallel change in every step, and ZeRO-3 gathers weights in the middle of a block.
    "compile": tuple(name for name in STRATEGIES if name not in ("dp", "zero3")),
}
"""Options that mean something to some strategies only."""

FINDING_MICRO_BATCH = ("ddp", "fsdp", "hsdp", "tp", "fsdp+tp", "dp", "horovod")
"""Strategies that can try how many samples fit: see `..fitting`."""


def lookup(name: str) -> Entry:
    """Where the strategy of that name is. Raises UsageError with the nearest names. Loads nothing."""
    if name not in STRATEGIES:
        close = difflib.get_close_matches(name.lower(), STRATEGIES, n=3, cutoff=0.65)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(STRATEGIES)}"
        raise UsageError(f"--strategy {name}: no such strategy; {hint}")
    return STRATEGIES[name]


def find(name: str) -> type[Strategy]:
    """The strategy of torch of that name. Raises UsageError when there is none, or torch is too old."""
    import torch

    entry = lookup(name)
    if entry.framework != "torch":
        raise UsageError(f"--strategy {name} is one of {entry.framework}, not of torch")
    if torch.__version__ < entry.oldest_torch:
        oldest = ".".join(map(str, entry.oldest_torch))
        raise UsageError(f"--strategy {name} needs torch {oldest} or newer, this is {torch.__version__}")
    found: type[Strategy] = entry.load()
    return found


def check(cfg: Config) -> None:
    """Raise UsageError when there is no such strategy, or an option is set that means nothing to it.

    Or to what the other options say.
    """
    if lookup(cfg.strategy).framework == "torch":
        find(cfg.strategy)
    defaults = {field.name: field.default for field in fields(Config)}
    for option, meant_for in OPTIONS.items():
        if cfg.strategy not in meant_for and getattr(cfg, option) != defaults[option]:
            flag = "--" + option.replace("_", "-")
            raise UsageError(
                f"{flag} means nothing under --strategy {cfg.strategy}, only under {', '.join(meant_for)}: "
                "leave it out"
            )
    if cfg.micro_batch == "auto":
        _check_auto(cfg)
    if cfg.prefetch != defaults["prefetch"] and cfg.workers == 0:
        raise UsageError("--prefetch is for processes that prepare data, and there are none: raise --workers")


def _check_auto(cfg: Config) -> None:
    if cfg.strategy not in FINDING_MICRO_BATCH:
        raise UsageError(
            f"--micro-batch auto is not there under --strategy {cfg.strategy}, only under "
            f"{', '.join(FINDING_MICRO_BATCH)}: give a number"
        )
    if cfg.global_batch is None:
        raise UsageError(
            "--micro-batch auto needs --global-batch: what a step learns must not depend on a GPU's memory"
        )
    if cfg.accumulation is not None:
        raise UsageError("--micro-batch auto finds the accumulation as well: leave --accumulation out")

"""What the demo launches: how many ranks a strategy needs to be itself, and the Python that they run in.

All that a strategy lacks on this machine is said here, before a server is started or a folder made.
"""

from __future__ import annotations

import difflib
import importlib.util
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from profiles.keys import STRATEGIES

from .fleet.errors import EncampError, UsageError

PROFILE = "gpt-tiny"

RANKS = 2
"""How many ranks a strategy gets that can do with any number above one."""

OTHER_RANKS = {"hsdp": 4, "fsdp+tp": 4, "dp": 1, "tf-mirrored": 1}
"""Two copies of two shards, two groups of two; one process for all devices."""

SMALLER = ("train.micro_batch=4",)
"""Four ranks then take as many samples in a step as two do otherwise."""

TRIAL_SECONDS = 60.0
"""How long a Python may take to say whether it has the packages, on a machine that is busy."""

INSTALL = {
    "torch": "Install it with: {python} -m pip install 'torch>=2.4' numpy",
    "deepspeed": "Install it with: {python} -m pip install 'deepspeed>=0.19.5'",
    "horovod": (
        "Horovod has to be built for its torch, as `encamp env build horovod --on HOST` does on a host. "
        "Then: encamp demo --strategy {strategy} --python PATH"
    ),
    "tensorflow": (
        "Give it a Python of its own: `python3 -m venv ~/tf && ~/tf/bin/pip install tensorflow`. "
        "Then: encamp demo --strategy {strategy} --python ~/tf/bin/python"
    ),
}
"""Package -> how to come by it."""

_TRIAL = (
    "import importlib.util as u, sys; print('has', *(name for name in sys.argv[1:] if u.find_spec(name)))"
)


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One launch: the strategy, its ranks, their Python, and what of all that differs from the profile."""

    strategy: str
    ranks: int
    python: str
    settings: tuple[str, ...]


def plan(strategy: str, python: str = "") -> DemoRun:
    """The launch for `strategy`, in the Python `python` or one of this machine that has what it needs.

    Raises UsageError for a strategy that there is not, EncampError with the way out when no Python has it.
    """
    if strategy not in STRATEGIES:
        close = difflib.get_close_matches(strategy.lower(), STRATEGIES, n=3, cutoff=0.65)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"There are {', '.join(STRATEGIES)}."
        raise UsageError(f"--strategy {strategy}: no such strategy.", hint)
    ranks = OTHER_RANKS.get(strategy, RANKS)
    found = _python(strategy, python)
    settings = [f'run.strategy="{strategy}"', f"run.nproc_per_node={ranks}", f'run.python="{found}"']
    return DemoRun(strategy, ranks, found, (*settings, *(SMALLER if ranks > RANKS else ())))


def packages(strategy: str) -> tuple[str, ...]:
    """What a Python must be able to import for `strategy`."""
    if strategy.startswith("tf-"):
        return ("tensorflow",)
    if strategy.startswith("zero"):
        return ("torch", "deepspeed")
    return ("torch", "horovod") if strategy == "horovod" else ("torch",)


def _python(strategy: str, chosen: str) -> str:
    needed = packages(strategy)
    if chosen:
        path = shutil.which(Path(chosen).expanduser())
        if path is None:
            raise UsageError(f"--python {chosen}: there is no such program.", "It is the path of a Python.")
        lacking = _lacking(path, needed)
        if lacking is None:
            raise EncampError(f"{path} does not run as a Python.", "Name another one with --python.")
        if lacking:
            raise _missing(strategy, lacking, f"{path} lacks it", str(path))
        return str(Path(path).absolute())
    here = [name for name in needed if importlib.util.find_spec(name) is None]
    if not here:
        return sys.executable
    for name in ("python3", "python"):
        path = shutil.which(name)
        if path is not None and _lacking(path, needed) == []:
            return str(Path(path).absolute())
    raise _missing(strategy, here, "no Python here has it", sys.executable)


def _lacking(python: str, names: tuple[str, ...]) -> list[str] | None:
    """Which of the packages `python` does not have; None when it does not say."""
    words = [python, "-c", _TRIAL, *names]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    said = done.stdout.split()
    return [name for name in names if name not in said] if said[:1] == ["has"] else None


def _missing(strategy: str, lacking: list[str], where: str, python: str) -> EncampError:
    names = " and ".join(lacking)
    message = f"The demo trains for real: --strategy {strategy} needs {names}, and {where}."
    program = shlex.quote(python)
    hints = (INSTALL[name].format(strategy=strategy, python=program) for name in lacking)
    return EncampError(message, " ".join(hints))

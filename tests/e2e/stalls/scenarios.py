"""The bank: every way to stall, to crash or only to take long, and what has to be said of each.

`SCENARIOS` is the table. What is measured and how is in `bank`.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

MEDIAN_SECONDS = 8.0
STALL_SECONDS = 20.0
"""From the moment in which a script gets stuck to the alarm, where steps take up to a second: in the median
over all such scenarios, and at most.
"""

CRASH_SECONDS = 10.0
"""From a failure to the end of the run with the first failure named, on a machine that does other things."""


@dataclass(frozen=True)
class Scenario:
    """One run and what it has to come to."""

    name: str
    script: str
    args: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ("healthy",)
    """Any of these is right."""
    culprits: tuple[int, ...] = ()
    ranks: int = 2
    strategy: str = "ddp"
    words: str = ""
    """What the sentence has to hold."""
    seconds: float = STALL_SECONDS
    signal: int = 0
    """Sent to the culprit from outside once it has trained for a while."""
    paused: float = 0.0
    """So many seconds later it may go on."""
    ask_at: int = 0
    """At this step somebody asks, and no alarm is called."""
    silent_for: float = 0.0
    """So long nothing must be said, and then somebody asks; it never ends by itself."""
    memory: str = ""
    """All processes of the run together may use so much, as in `600m`."""
    needs: str = ""
    """A program that has to be there."""
    task: bool = False
    """It is a job of the trainer's."""
    quick: bool = False
    """Part of the quick suite."""

    @property
    def timed(self) -> bool:
        """Whether it has a rhythm of steps: by the times of those the project is measured."""
        return not self.healthy and self.seconds == STALL_SECONDS

    @property
    def healthy(self) -> bool:
        """Whether no alarm must be called."""
        return self.verdicts in (("healthy",), ("straggler",))


def _ddp(what: str, verdict: str, culprit: int = 1, **more: object) -> Scenario:
    values: dict[str, object] = {"culprits": (culprit,), **more}
    name = str(values.pop("name", f"ddp-{what}"))
    verdicts = tuple(verdict.split("|"))
    return Scenario(name, "ddp.py", (what, str(culprit)), verdicts, **values)  # type: ignore[arg-type]


def _data(what: str, culprit: int, **more: object) -> Scenario:
    args = (what, str(culprit))
    return Scenario(f"data-{what}", "loader.py", args, ("data-starved",), (culprit,), **more)  # type: ignore[arg-type]


def _healthy(what: str, **more: object) -> Scenario:
    return Scenario(f"healthy-{what}", "healthy.py", (what,), **more)  # type: ignore[arg-type]


STALLS = (
    _ddp("sleep", "collective-missing", words="wait_for_the_others_file (ddp.py:", quick=True),
    _ddp("sleep", "collective-missing", 2, ranks=4, name="ddp-sleep-of-4"),
    _ddp("sleep", "collective-missing", 0, name="ddp-sleep-rank-0"),
    _ddp("spin", "collective-missing", words="computes in spin (ddp.py:"),
    _ddp("barrier", "collective-mismatch|collective-missing", culprits=(0, 1)),
    _ddp("wait", "stopped", name="ddp-sigstop", signal=signal.SIGSTOP),
    _ddp("locks", "thread-deadlock", words="two_locks (ddp.py:"),
    _ddp("queue", "thread-deadlock", words="next_sample (ddp.py:"),
    _ddp("thread", "thread-deadlock", words="finish (ddp.py:"),
    _ddp("library", "gil-held", words="call_library (ddp.py:"),
    _ddp("kernel", "kernel-wait", words="rank 1 is stuck in the kernel", needs="cc"),
    _ddp("save", "slow-storage", words="write_state (ddp.py:"),
    _ddp("kind", "collective-mismatch|exited-early", culprits=(0, 1)),
    _ddp("order", "collective-mismatch", culprits=(0, 1)),
    _ddp("subgroup", "collective-missing", words="never called all_reduce", ranks=3),
    _ddp("receive", "collective-mismatch", words="waits for others in recv in go_wrong (ddp.py:"),
    Scenario("fsdp-sleep", "sharded.py", ("fsdp", "1"), ("collective-missing",), (1,), words="load_batch"),
    Scenario("fsdp1-sleep", "sharded.py", ("fsdp1", "0"), ("collective-missing",), (0,), words="load_batch"),
    Scenario("zero-sleep", "sharded.py", ("zero", "1"), ("collective-missing",), (1,), words="load_batch"),
    Scenario("task-sleep", "job.py", ("ddp",), ("collective-missing",), (1,), words="loss (job", task=True),
    _data("stopped-worker", 1, words="is stopped"),
    _data("slow-worker", 1, words="download (loader.py:"),
    _data("no-workers", 0, words="download (loader.py:"),
    Scenario("no-optimizer", "bare.py", ("no-optimizer",), ("collective-missing",), (1,)),
    Scenario("never-joins", "bare.py", ("never-joins",), ("collective-missing",), (1,), seconds=45),
    # its own handler of SIGUSR2, a fork before there is a process group, its own standard output
    _ddp("own-ways", "collective-missing", words="wait_for_the_others_file (ddp.py:"),
)
"""Something is stuck."""

CRASHES = (
    # gloo aborts whoever is sent more than it takes
    _ddp("shape", "dead", culprits=(0,), seconds=CRASH_SECONDS),
    _ddp("small-shape", "dead", seconds=CRASH_SECONDS),
    _ddp("leave", "exited-early", seconds=CRASH_SECONDS),
    _ddp("leave-silently", "exited-early|dead", seconds=CRASH_SECONDS),
    _ddp("exit-3", "exited-early", seconds=CRASH_SECONDS),
    _ddp("raise", "exited-early", words="KeyError: 'learning_rate'", seconds=CRASH_SECONDS),
    _ddp("own-hook", "exited-early", words="KeyError: 'learning_rate'", seconds=CRASH_SECONDS),
    _ddp("wait", "dead", name="ddp-sigkill", signal=signal.SIGKILL, seconds=CRASH_SECONDS),
    _ddp("segfault", "dead", seconds=CRASH_SECONDS),
    _ddp("allocate", "out-of-memory", seconds=CRASH_SECONDS),
    _ddp("memory", "out-of-memory", words="MemoryError", seconds=CRASH_SECONDS),
    _ddp("fill-memory", "out-of-memory", words="it grew from ", memory="1200m", seconds=2 * CRASH_SECONDS),
    _data("killed-worker", 1, seconds=CRASH_SECONDS),
)
"""Something is over that should not be."""

OTHERS = (
    _ddp("nan", "nan"),
    _ddp("slow", "straggler", ask_at=20),
)
"""It goes on, and not as it should."""

HEALTHY = (
    _healthy("plain", quick=True),
    _healthy("evaluate"),
    _healthy("evaluate-on-0"),
    _healthy("crunch"),
    _healthy("save"),
    _healthy("chatter"),
    _healthy("uneven"),
    _healthy("warm-up"),
    _healthy("accumulate"),
    _healthy("very-slow"),
    _healthy("tokenize"),
    _healthy("long-start"),
    Scenario("healthy-paused", "ddp.py", ("wait", "1"), culprits=(1,), signal=signal.SIGSTOP, paused=2.0),
    Scenario("healthy-no-torch", "bare.py", ("no-torch",)),
    Scenario("healthy-no-optimizer", "bare.py", ("no-optimizer-healthy",)),
    # its ranks are hidden in processes of its own: one of them sleeps, and nobody can know
    Scenario("hidden-spawn", "bare.py", ("spawn",), ranks=1, silent_for=45, words="encamp cannot see"),
)
"""Nothing is wrong, or nothing can be known."""

SCENARIOS = {found.name: found for found in (*STALLS, *CRASHES, *OTHERS, *HEALTHY)}

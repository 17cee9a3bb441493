"""The ranks of one attempt as seen from outside: their processes, their steps, their logs, once a second.

Everything comes from files that the shim and the trainer write (see `rank.py`) and from /proc; no rank is
ever asked. What a file says is checked: it lies where the user's program can write.
"""

from __future__ import annotations

import math
import os
import struct
import time
from typing import Dict, List, Optional, Sequence, Tuple

from . import files, process, wire
from .procfile import ProcFile
from .progress import ProgressTail, training

STEPS = struct.Struct("<8sQdd")
STEPS_MAGIC = b"ENCAMP1\0"

SMOOTHING = 0.3
"""Weight of the newest observation in the smoothed step time: about the last five count."""

MAX_PHASE = 32


class Rhythm:
    """Seconds per step, smoothed over what was observed."""

    def __init__(self) -> None:
        self.seconds: Optional[float] = None
        self._steps = 0
        self._at = 0.0

    def observe(self, steps: int, at: float) -> None:
        """Note that step `steps` ended at the time `at`, in seconds of any one clock."""
        if steps > self._steps > 0 and at > self._at:
            seconds = (at - self._at) / (steps - self._steps)
            self.seconds = (
                seconds if self.seconds is None else self.seconds + SMOOTHING * (seconds - self.seconds)
            )
        if steps != self._steps:
            self._steps, self._at = steps, at


class RankWatch:
    """One rank, from the moment in which it may start to its end."""

    def __init__(self, attempt_dir: str, rank: int, local_rank: int, *, resume: bool) -> None:
        self.rank = rank
        self._local_rank = local_rank
        folder = os.path.join(attempt_dir, f"rank{rank}")
        self._folder = folder
        self._log = folder + ".log"
        # Read, not mapped: a mapped file that somebody truncates ends the process that looks at it.
        self._steps = ProcFile(os.path.join(folder, "steps"), STEPS.size)
        self._rhythm = Rhythm()
        self._progress_file = os.path.join(folder, "progress.jsonl")
        self.progress = ProgressTail(self._progress_file, resume=resume)
        self.new_records: List[wire.Record] = []
        self.state = "starting"
        self._pid = 0
        self._start_time = 0
        self._visible: Optional[str] = None
        """CUDA_VISIBLE_DEVICES that it was started with."""
        self._exit_code: Optional[int] = None
        self._ticks = 0
        self._ticks_at = 0.0

    def sample(self, gpus: Sequence[wire.GpuSample], attempt_over: bool) -> wire.RankSample:
        """What can be seen of it now. `attempt_over`: a rank that has not started never will."""
        if self.state == "starting":
            self._look_for_start()
        process_state = cpu_percent = rss = None
        if self.state == "running":
            found = process.stat(self._pid)
            if found is not None and found.start_time == self._start_time and not found.dead:
                process_state, rss = found.state, found.rss_bytes
                cpu_percent = self._cpu(found.cpu_ticks)
            else:
                self._look_for_end()
        elif self.state == "starting" and attempt_over:
            self.state = "lost"
        elif self.state == "lost":
            self._look_for_end()  # its supervisor learns from the launcher how it ended
        step, step_time, phase = self._look_at_progress()
        return wire.RankSample(
            rank=self.rank,
            local_rank=self._local_rank,
            state=self.state,
            pid=self._pid or None,
            process_state=process_state,
            gpu=gpu_index(self._local_rank, self._visible, gpus),
            step=step,
            step_time=step_time,
            step_seconds=self._rhythm.seconds,
            cpu_percent=cpu_percent,
            rss_bytes=rss,
            log_bytes=_size(self._log),
            exit_code=self._exit_code,
            phase=phase,
        )

    def training(self, before: Optional[wire.Training]) -> Optional[wire.Training]:
        """What it says of how it trains: looked up again when the last `sample` found it beginning."""
        begins = any(record.get("phase") == "init" for record in self.new_records)
        return training(self._progress_file) if begins else before

    def close(self) -> None:
        """Close the file that is kept open."""
        self._steps.close()

    def _look_for_start(self) -> None:
        values = files.read_json(os.path.join(self._folder, "rank.json"))
        if values is None:
            return
        pid, start_time, local_rank = (
            _int(values, "pid"),
            _int(values, "start_time"),
            _int(values, "local_rank"),
        )
        if not pid or start_time is None:
            return
        self._pid, self._start_time = pid, start_time
        if local_rank is not None:
            self._local_rank = local_rank
        self.state = "running"
        prefix = b"CUDA_VISIBLE_DEVICES="
        found = [entry for entry in process.environ(pid) if entry.startswith(prefix)]
        self._visible = found[0][len(prefix) :].decode("ascii", "replace") if found else None

    def _look_for_end(self) -> None:
        values = files.read_json(os.path.join(self._folder, "exit.json"))
        self.state = "lost" if values is None else "exited"
        self._exit_code = None if values is None else _int(values, "code")

    def _look_at_progress(self) -> tuple[Optional[int], Optional[float], Optional[str]]:
        """Step, wall time of the last step, phase."""
        step = step_time = None
        data = self._steps.read()
        if len(data) == STEPS.size and data.startswith(STEPS_MAGIC):
            _, steps, wall, monotonic = STEPS.unpack(data)
            if 0 < steps < 2**63 and math.isfinite(wall) and math.isfinite(monotonic):
                step, step_time = steps, wall
                self._rhythm.observe(steps, monotonic)
        self.new_records = self.progress.read()
        newest = self.progress.newest
        reported, at, phase = newest.get("step"), newest.get("time"), newest.get("phase")
        if isinstance(reported, int) and not isinstance(reported, bool) and reported >= 0:
            if step is None and isinstance(at, (int, float)):
                step_time = float(at)
                self._rhythm.observe(reported, step_time)  # a program without torch
            step = reported
        return step, step_time, phase[:MAX_PHASE] if isinstance(phase, str) else None

    def _cpu(self, ticks: int) -> Optional[float]:
        now = time.monotonic()
        seconds = now - self._ticks_at
        used = (ticks - self._ticks) / process.TICKS_PER_SECOND
        known = self._ticks_at > 0 and seconds > 0
        self._ticks, self._ticks_at = ticks, now
        return max(0.0, 100.0 * used / seconds) if known else None


class RankSampler:
    """All ranks of one attempt on this host.

    `nproc` ranks are expected, the first of them with the global rank `first_rank`. `resume` says that the
    attempt was running before this daemon: progress that is already in the files is not reported again.
    """

    def __init__(
        self,
        attempt_dir: str,
        run: str,
        attempt: int,
        nproc: int,
        *,
        first_rank: int = 0,
        resume: bool = False,
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._exit_file = os.path.join(attempt_dir, "exit.json")
        self._ranks = [
            RankWatch(attempt_dir, first_rank + local_rank, local_rank, resume=resume)
            for local_rank in range(nproc)
        ]
        self._training = training(os.path.join(attempt_dir, f"rank{first_rank}", "progress.jsonl"))

    def sample(self, gpus: Sequence[wire.GpuSample] = ()) -> wire.Ranks:
        """All ranks now; rates are since the last call. `gpus` are the host's: one of them is the rank's."""
        starting = any(rank.state == "starting" for rank in self._ranks)
        over = starting and os.path.exists(self._exit_file)
        samples = tuple(rank.sample(gpus, over) for rank in self._ranks)
        if self._ranks:  # they all say the same
            self._training = self._ranks[0].training(self._training)
        return wire.Ranks(self._run, self._attempt, time.time(), samples, self._training)

    def new_progress(self) -> List[wire.Progress]:
        """The progress records that the last `sample` found, one message a rank that had any."""
        return [
            wire.Progress(self._run, self._attempt, rank.rank, tuple(rank.new_records))
            for rank in self._ranks
            if rank.new_records
        ]

    def told(self) -> Dict[int, Tuple[object, str]]:
        """Of each rank the time of the newest record that it wrote, and its loss where that is a word."""
        found: Dict[int, Tuple[object, str]] = {}
        for rank in self._ranks:
            newest = rank.progress.newest
            loss = newest.get("loss")
            found[rank.rank] = (newest.get("time"), loss if isinstance(loss, str) else "")
        return found

    def close(self) -> None:
        """Close the files that are kept open."""
        for rank in self._ranks:
            rank.close()


def gpu_index(local_rank: int, visible: Optional[str], gpus: Sequence[wire.GpuSample]) -> Optional[int]:
    """Which of the host's `gpus` a rank uses, or None when it uses none or that cannot be told.

    By convention a rank takes the GPU of its local rank among those that CUDA_VISIBLE_DEVICES (`visible`)
    leaves to it; where it leaves one, that one.
    """
    left: List[int] = []
    if visible is None:
        left = [gpu.index for gpu in gpus]
    else:
        for word in visible.split(","):
            index = _named_gpu(word.strip(), gpus)
            if index is None:
                break  # CUDA too ignores what follows an invalid entry
            left.append(index)
    if local_rank < len(left):
        return left[local_rank]
    return left[0] if left and visible is not None and "," not in visible else None


def _named_gpu(word: str, gpus: Sequence[wire.GpuSample]) -> Optional[int]:
    for gpu in gpus:
        if word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word)):
            return gpu.index
    return None


def _int(values: dict[str, object], name: str) -> Optional[int]:
    value = values.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0

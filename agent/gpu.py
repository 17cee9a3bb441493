"""The daemon's view of the GPUs: owns the NVML child, its deadline and its end, and the newest status.

There is never more than one child. One that does not answer in time is killed; until it is really gone
(a call that blocks in the kernel survives even SIGKILL) no other is started. On a host without NVIDIA's
library no child is spent at all, see `driver.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import time
from typing import Any, Dict, Optional, Sequence, Tuple

from . import driver, wire

TICK_SECONDS = 1.0

MAX_BUFFER = 1024 * 1024
"""Bytes of unfinished line from the child after which it is not believed any more."""

SAME_SECONDS = 10.0
"""An XID at this distance of one with the same number is the same, told by another child."""

MAX_XIDS = 16

POLL_SECONDS = 0.01
SURVEY_SECONDS = 10.0
"""How long `survey` waits. A driver that hangs is found out by the missing next status."""

CLOSE_SECONDS = 2.0
"""How long `close` waits for a killed child before it leaves it to init."""

VOLATILE: Dict[str, Any] = {
    "utilization_percent": None,
    "memory_used_bytes": None,
    "power_watts": None,
    "temperature_celsius": None,
}
"""The values of a GPU that are worth nothing once they are old."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds that `GpuMonitor` waits; tests make them short."""

    first_line: float = 60.0
    """Until the first line: without persistence mode, initialising eight GPUs can take half a minute."""
    next_line: float = 10.0
    """Until each later line. They come once a second."""
    first_retry: float = 5.0
    """Before a child that crashed or hung is started again; doubles each time, up to `retry`."""
    retry: float = 60.0
    """Before a driver that was not there is looked for again."""
    kill: float = 3.0
    """Until a killed child that still exists is said to be stuck."""


class GpuMonitor:
    """Keeps `status()` current while it runs in an asyncio event loop.

    `command` starts the NVML child, normally `instance.agent_command("nvml")`.
    """

    def __init__(self, command: Sequence[str], timing: Timing = Timing()) -> None:
        self._command = list(command)
        self._timing = timing
        self._status = wire.GpuStatus("starting", "asking the NVIDIA driver", time.time())
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._output = -1
        self._buffer = b""
        self._lines = 0
        self._heard = 0.0
        """Monotonic time of the child's last line, or of its start."""
        self._killed: Optional[float] = None
        """Monotonic time of our SIGKILL, while that child is not gone yet."""
        self._hung_since: Optional[float] = None
        """Monotonic time since when the driver has not answered; outlives the child that noticed."""
        self._next_start = 0.0
        self._failures = 0
        self._before: Dict[str, Tuple[wire.Xid, ...]] = {}
        """XIDs of each GPU that earlier children heard of: one that has to be replaced takes none with it."""
        self._survey: Optional[asyncio.Future[Dict[str, Any]]] = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._timer: Optional[asyncio.TimerHandle] = None

    @property
    def pid(self) -> Optional[int]:
        """Process id of the child, while there is one."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Look for the driver now and keep looking after it. Call from within the event loop."""
        self._loop = asyncio.get_running_loop()
        self._tick()

    def status(self) -> wire.GpuStatus:
        """The newest reading; its `time` is when the driver gave it, not now.

        While the driver hangs, the GPUs are still listed but without the values that may have changed.
        """
        if self._hung_since is None:
            return self._status
        now = time.monotonic()
        message = f"driver hung for {now - self._hung_since:.0f} s"
        if self._killed is not None and now - self._killed > self._timing.kill:
            message += "; not even SIGKILL ends the call: the host may need a reboot"
        gpus = _without_values(self._status.gpus, "hung")
        return dataclasses.replace(self._status, state="hung", message=message, gpus=gpus)

    async def survey(self) -> Dict[str, Any]:
        """Processes on the GPUs and how these are joined, see `survey.read`; empty where nobody can tell."""
        process = self._process
        if process is None or process.stdin is None or not self._lines or self._hung_since is not None:
            return {}
        if self._survey is None or self._survey.done():
            self._survey = asyncio.get_running_loop().create_future()
            try:
                process.stdin.write(b"survey\n")
            except OSError:
                return {}  # it has just ended
        await asyncio.wait([self._survey], timeout=SURVEY_SECONDS)
        return self._survey.result() if self._survey.done() else {}

    async def close(self) -> None:
        """End the child and stop looking. A child that cannot be ended is left behind after CLOSE_SECONDS."""
        if self._timer is not None:
            self._timer.cancel()
        self._close_pipes()
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for _ in range(round(CLOSE_SECONDS / POLL_SECONDS)):
            if process.poll() is not None:
                return
            await asyncio.sleep(POLL_SECONDS)

    def _tick(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        now = time.monotonic()
        if self._process is None:
            if now >= self._next_start:
                self._begin(now)
            return
        code = self._process.poll()
        if code is not None:
            self._ended(code, now)
            return
        patience = self._timing.next_line if self._lines else self._timing.first_line
        if self._killed is None and now - self._heard > patience:
            self._killed = now
            if self._hung_since is None:
                self._hung_since = self._heard
            self._process.kill()

    def _begin(self, now: float) -> None:
        found = driver.find(library_path=os.environ.get("LD_LIBRARY_PATH", ""))
        if isinstance(found, driver.Missing):
            self._hung_since = None
            self._status = wire.GpuStatus(found.state, found.message, time.time())
            self._next_start = now + self._timing.retry
            return
        try:
            process = subprocess.Popen(
                self._command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=found.environment(),
            )
        except OSError as error:  # no processes or no memory left: pids.max of a rented container
            self._failed(f"the GPU reader cannot be started: {error.strerror}", now)
            return
        assert process.stdout is not None and self._loop is not None
        self._before.update((gpu.uuid, gpu.xids) for gpu in self._status.gpus if gpu.xids)
        self._process = process
        self._lines = 0
        self._buffer = b""
        self._heard = now
        self._output = process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._read)

    def _ended(self, code: int, now: float) -> None:
        self._read()
        self._close_pipes()
        self._process = None
        hung, self._killed = self._killed is not None, None
        if hung:
            self._retry_later(now)
        elif code == 0 and self._lines:
            self._next_start = now + self._timing.retry
        elif code < 0:
            self._failed(f"the NVIDIA library crashed its reader (signal {-code})", now)
        else:
            self._failed(f"the GPU reader ended with exit code {code}", now)

    def _failed(self, message: str, now: float) -> None:
        gpus = _without_values(self._status.gpus, "error")
        self._status = dataclasses.replace(
            self._status, state="error", message=message, time=time.time(), gpus=gpus
        )
        self._hung_since = None
        self._retry_later(now)

    def _retry_later(self, now: float) -> None:
        """Plan the next child: the more of them failed in a row, the later."""
        self._next_start = now + min(self._timing.retry, self._timing.first_retry * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)

    def _read(self) -> None:
        """Take what the child has written; of the statuses only the newest whole line counts."""
        if self._output < 0:
            return
        try:
            while True:
                data = os.read(self._output, 65536)
                if not data:
                    self._unwatch()
                    break
                self._buffer += data
        except BlockingIOError:
            pass
        lines, separator, rest = self._buffer.rpartition(b"\n")
        self._buffer = rest if len(rest) <= MAX_BUFFER else b""
        newest = b""
        for line in lines.split(b"\n") if separator else ():
            if line.startswith(b'{"survey"'):
                self._take_survey(line)
            else:
                newest = line
        if newest:
            self._take(newest)

    def _take_survey(self, line: bytes) -> None:
        try:
            survey = json.loads(line)["survey"]
        except ValueError:
            return
        if self._survey is not None and not self._survey.done():
            self._survey.set_result(survey)

    def _take(self, line: bytes) -> None:
        try:
            status = wire.from_json(wire.GpuStatus, json.loads(line))
        except ValueError:
            return  # if no better line follows, the deadline says so
        self._status = dataclasses.replace(status, gpus=tuple(map(self._with_xids, status.gpus)))
        self._heard = time.monotonic()
        self._lines += 1
        self._hung_since = None
        if self._lines * TICK_SECONDS >= self._timing.retry:
            self._failures = 0

    def _with_xids(self, gpu: wire.GpuSample) -> wire.GpuSample:
        """The GPU with what earlier children heard of it, unless the kernel's log told this one too."""
        before = [
            old
            for old in self._before.get(gpu.uuid, ())
            if not any(xid.code == old.code and abs(xid.time - old.time) < SAME_SECONDS for xid in gpu.xids)
        ]
        return dataclasses.replace(gpu, xids=(*before, *gpu.xids)[-MAX_XIDS:]) if before else gpu

    def _unwatch(self) -> None:
        if self._output >= 0 and self._loop is not None:
            self._loop.remove_reader(self._output)
        self._output = -1

    def _close_pipes(self) -> None:
        self._unwatch()
        if self._survey is not None and not self._survey.done():
            self._survey.set_result({})
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


def _without_values(gpus: Tuple[wire.GpuSample, ...], state: str) -> Tuple[wire.GpuSample, ...]:
    return tuple(dataclasses.replace(gpu, state=state, **VOLATILE) for gpu in gpus)

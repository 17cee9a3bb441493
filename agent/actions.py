"""Launch, restart and stop as viewers ask for them: never blocking the loop, in an order that makes sense.

What is done is in `control.py`, which blocks; here is who waits for what, and what happens when two people
want different things of one run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Callable, Dict, Iterator, Optional

from . import control, gpu, runs, wire
from .attempt import Attempt
from .errors import RunError

LOOK_SECONDS = 0.05
"""Pause between two looks at something that is waited for."""

GPU_SECONDS = 30.0
"""How long a launch waits for the NVIDIA driver's first answer, to count the GPUs."""

STOP_SECONDS = 90.0
"""How long after the grace of a stop its end is waited for; a supervisor gives up earlier."""


async def in_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function that blocks, in one of the loop's threads. Raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: function(*arguments, **named))


async def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until `condition` holds, at most so long; returns whether it does."""
    deadline = time.monotonic() + seconds
    while True:
        if condition():
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_SECONDS)


class _Pending:
    """A launch or restart on its way."""

    def __init__(self, begins: bool) -> None:
        self.begins = begins
        """The attempt is being started; before that a restart can still be called off."""
        self.called_off = False
        self.over = asyncio.Event()


class Actions:
    """All that is being done to the runs of `home`. `changed` is called whenever something was done."""

    def __init__(self, home: str, gpus: gpu.GpuMonitor, changed: Callable[[], None]) -> None:
        self._home = home
        self._gpus = gpus
        self._changed = changed
        self._pending: Dict[str, _Pending] = {}

    async def launch(self, spec: wire.LaunchSpec, actor: str, dry_run: bool = False) -> control.Started:
        """Start a run; returns when its launcher has been started. Raises RunError."""
        gpus = await self._count_gpus(spec)
        if dry_run:
            planned: control.Started = await in_thread(control.plan, self._home, spec, gpus=gpus)
            return planned
        if spec.run in self._pending:
            raise RunError("exists", f"a run {spec.run!r} is just being started", "choose another id")
        with self._begin(spec.run, begins=True):
            started: control.Started = await in_thread(control.launch, self._home, spec, actor, gpus=gpus)
            return started

    async def restart(self, run: str, actor: str) -> control.Started:
        """Stop the current attempt if it lives, wait until it is gone, start the next. Raises RunError."""
        spec = runs.current(self._home, run).launch_spec()
        gpus = 0 if spec is None else await self._count_gpus(spec)
        if run in self._pending:
            raise RunError("busy", f"{run} is just being started", "wait for its next attempt")
        with self._begin(run, begins=False) as pending:
            await self._stop(run, actor, None)
            if pending.called_off:
                raise RunError("busy", f"{run} was stopped while it was to be restarted", "restart it again")
            pending.begins = True
            started: control.Started = await in_thread(control.restart, self._home, run, actor, gpus=gpus)
            return started

    async def stop(self, run: str, actor: str, grace_seconds: Optional[float]) -> Attempt:
        """Stop the current attempt and wait until it is gone; a restart that is under way is called off.

        Another stop meanwhile can shorten the grace. Raises RunError.
        """
        pending = self._pending.get(run)
        if pending is not None:
            pending.called_off = True
            if not pending.begins:
                await self._stop(run, actor, grace_seconds)
            await pending.over.wait()
        return await self._stop(run, actor, grace_seconds)

    @contextlib.contextmanager
    def _begin(self, run: str, begins: bool) -> Iterator[_Pending]:
        pending = self._pending[run] = _Pending(begins)
        try:
            yield pending
        finally:
            del self._pending[run]
            pending.over.set()
            self._changed()

    async def gpu_status(self) -> wire.GpuStatus:
        """What the NVIDIA driver says, once it has said something."""
        await eventually(lambda: self._gpus.status().state != "starting", GPU_SECONDS)
        return self._gpus.status()

    async def gpu_survey(self) -> Dict[str, Any]:
        """Processes on the GPUs and how these are joined, see `survey.read`; empty where nobody can tell."""
        return await self._gpus.survey()

    async def _count_gpus(self, spec: wire.LaunchSpec) -> int:
        """The GPUs that "auto" stands for; 0 when it does not matter. Raises RunError where nobody knows."""
        if spec.nproc_per_node:
            return 0
        status = await self.gpu_status()
        if status.state not in ("ok", "none"):
            raise RunError(
                "no-gpus",
                f"the GPUs of this host cannot be counted: {status.message or status.state}",
                "set nproc_per_node in the profile to go on without them",
            )
        return len(status.gpus)

    async def _stop(self, run: str, actor: str, grace_seconds: Optional[float]) -> Attempt:
        attempt: Attempt = await in_thread(control.stop, self._home, run, actor, grace_seconds)
        self._changed()
        spec = attempt.launch_spec()
        grace = spec.stop_grace_seconds if spec is not None else 0.0
        await eventually(lambda: attempt.condition().over, max(grace, grace_seconds or 0.0) + STOP_SECONDS)
        self._changed()
        return attempt

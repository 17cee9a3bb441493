"""What viewers want to be done to runs: never blocking the loop, in an order that makes sense.

What is done is in `control.py`, which blocks; here is who waits for what, and what happens when two people
want different things of one run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Awaitable, Callable, Dict, Iterator, List, Optional

from . import control, gpu, prepare, secret_file, wire
from .attempt import Attempt
from .errors import RunError
from .prepare import Hardware, Order, Started
from .runs import current

LOOK_SECONDS = 0.05
"""Pause between two looks at something that is waited for."""

GPU_SECONDS = 30.0
"""How long a launch waits for the NVIDIA driver's first answer, to count the GPUs."""

GPU_FREE_SECONDS = 20.0
"""How long after the end of an attempt the memory of its GPUs may take to be free."""

GPU_SLACK_BYTES = 1 << 30
"""By so much more than before the attempt may be in use: other programs have their own life."""

ABANDONED_BY = "encamp, as other hosts could not start"
ABANDON_GRACE_SECONDS = 5.0

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

    def __init__(
        self,
        home: str,
        gpus: gpu.GpuMonitor,
        changed: Callable[[], None],
        look_last: Callable[[Attempt], Awaitable[None]],
    ) -> None:
        self._home = home
        self._gpus = gpus
        self._changed = changed
        self.look_last = look_last
        """To be awaited before ranks are ended: it writes down what they show. Never raises."""
        self._pending: Dict[str, _Pending] = {}

    async def plan(self, order: Order, gpus_may_be_held: bool = False) -> Started:
        """What a launch or `prepare` would make ready; nothing is written. Raises RunError."""
        hardware = await self._hardware(order.spec)
        planned: Started = await in_thread(prepare.plan, self._home, order, hardware, gpus_may_be_held)
        return planned

    async def launch(self, order: Order) -> Started:
        """Start a run; returns when its launcher has been started. Raises RunError."""
        hardware = await self._hardware(order.spec)
        self._refuse_pending(order)
        with self._begin(order.spec.run, begins=True):
            started: Started = await in_thread(control.launch, self._home, order, hardware)
            return started

    async def restart(
        self,
        run: str,
        actor: str,
        secrets: Optional[Dict[str, str]] = None,
        forced: str = "",
        resume_step: Optional[int] = None,
        follows: Optional[int] = None,
    ) -> Started:
        """Stop the current attempt if it lives, wait until it is gone, start the next. Raises RunError."""
        order = control.next_order(self._home, run, actor, secrets, forced, resume_step, follows)
        secret_file.check(order.spec, order.secrets)  # before anything is stopped
        hardware = await self._hardware(order.spec)
        self._refuse_pending(order)
        with self._begin(run, begins=False) as pending:
            await self._stop(run, actor, None)
            if pending.called_off:
                raise RunError("busy", f"{run} was stopped while it was to be restarted", "restart it again")
            pending.begins = True
            await self._wait_for_memory(order)
            started: Started = await in_thread(control.launch, self._home, order, hardware)
            return started

    async def prepare(self, order: Order) -> Started:
        """Make an attempt ready, to be started soon; see `prepare.prepare`. Raises RunError."""
        hardware = await self._hardware(order.spec)
        self._refuse_pending(order)
        with self._begin(order.spec.run, begins=True):
            await self._wait_for_memory(order)
            _, started = await in_thread(prepare.prepare, self._home, order, hardware, lease=True)
            prepared: Started = started
            return prepared

    async def start(self, run: str, attempt: int) -> None:
        """Start what was prepared; see `control.start`. Raises RunError."""
        await self._settled(run)
        with self._begin(run, begins=True):
            await in_thread(control.start, self._home, run, attempt)

    async def abandon(self, run: str, attempt: int, rendezvous_id: str, actor: str = "") -> None:
        """Take back what was prepared, or stop it when it has begun, for `actor`. Raises RunError."""
        await self._settled(run)
        with self._begin(run, begins=True):
            begun = await in_thread(control.abandon, self._home, run, attempt, rendezvous_id)
        if begun:
            await self._stop(run, actor or ABANDONED_BY, ABANDON_GRACE_SECONDS)

    async def stop(
        self, run: str, actor: str, grace_seconds: Optional[float], seen: Optional[int] = None
    ) -> Attempt:
        """Stop the current attempt and wait until it is gone; a restart that is under way is called off.

        With `seen`, nothing that was begun after that attempt is stopped. Another stop meanwhile can shorten
        the grace. Raises RunError.
        """
        pending = self._pending.get(run)
        if pending is not None:
            pending.called_off = True
            if not pending.begins:
                await self._stop(run, actor, grace_seconds, seen)
            await pending.over.wait()
        return await self._stop(run, actor, grace_seconds, seen)

    def _refuse_pending(self, order: Order) -> None:
        run = order.spec.run
        if run in self._pending and order.attempt == 1:
            raise RunError("exists", f"a run {run!r} is just being started", "choose another id")
        if run in self._pending:
            raise RunError("busy", f"{run} is just being started", "wait for its next attempt")

    async def _settled(self, run: str) -> None:
        """Wait until nothing is on its way for a run."""
        while run in self._pending:
            await self._pending[run].over.wait()

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

    async def _wait_for_memory(self, order: Order) -> None:
        """Wait until what the attempt before had of GPU memory is free again.

        Raises RunError `gpus-held`, which names who has it.
        """
        before = Attempt(self._home, order.spec.run, order.attempt - 1).spec().get("gpu_memory")
        if not isinstance(before, dict) or order.forced:
            return
        held: List[int] = []

        def free() -> bool:
            held[:] = [
                gpu.index
                for gpu in self._gpus.status().gpus
                if isinstance(before.get(str(gpu.index)), int)
                and (gpu.memory_used_bytes or 0) > before[str(gpu.index)] + GPU_SLACK_BYTES
            ]
            return not held

        if await eventually(free, GPU_FREE_SECONDS):
            return
        found = (await self.gpu_survey()).get("processes") or []
        who = [
            f"process {each['pid']} on GPU {each['gpu']}" for each in found if each.get("gpu") in held
        ] or ["nobody who can be seen from here"]
        raise RunError(
            "gpus-held",
            f"{GPU_FREE_SECONDS:g} s after the end of attempt {order.attempt - 1} the memory of GPU "
            f"{', '.join(map(str, held))} is not free: {', '.join(who[:8])} has it",
            "end what has it, or restart with --force and a reason",
        )

    async def _hardware(self, spec: wire.LaunchSpec) -> Hardware:
        """What there is to run on. Raises RunError where that has to be known and nobody knows."""
        status = await self.gpu_status()
        if status.state not in ("ok", "none") and not spec.nproc_per_node:
            raise RunError(
                "no-gpus",
                f"the GPUs of this host cannot be counted: {status.message or status.state}",
                "set nproc_per_node in the profile to go on without them",
            )
        return Hardware(status.gpus)

    async def _stop(
        self, run: str, actor: str, grace_seconds: Optional[float], seen: Optional[int] = None
    ) -> Attempt:
        await self.look_last(await in_thread(current, self._home, run))
        attempt: Attempt = await in_thread(control.stop, self._home, run, actor, grace_seconds, seen)
        self._changed()
        spec = attempt.launch_spec()
        grace = spec.stop_grace_seconds if spec is not None else 0.0
        await eventually(lambda: attempt.condition().over, max(grace, grace_seconds or 0.0) + STOP_SECONDS)
        self._changed()
        return attempt

"""The daemon: one per ENCAMP_HOME, replaceable at any time. Samples once a second and serves the viewers.

It owns no run. All it knows it reads from the disk at its start, so killing it loses nothing: runs have
supervisors of their own, and the next relay starts another daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import time
from typing import Coroutine, Iterator, List, Optional, Sequence, Set, Tuple

from . import (
    actions,
    control,
    gpu,
    host,
    identity,
    inquiry,
    instance,
    last_look,
    paths,
    prepare,
    requests,
    secret_file,
    services,
    stall,
    watch,
    wire,
)
from .attempt import Attempt
from .cost import CostMeter
from .diagnosis import diagnose
from .signals import flight
from .viewer import Viewer

log = logging.getLogger("encamp")

TICK_SECONDS = 1.0

IDLE_SECONDS = 600.0
"""Without a viewer and without a live run for so long, the daemon ends: the next relay starts it again."""

LOG_BYTES = 1024 * 1024
"""Size at which agent.log becomes agent.log.1, of which there is only one."""

CLOSE_SECONDS = 2.0
"""How long viewers may take to be told the last things when the daemon goes."""


def main(arguments: List[str]) -> int:
    """`daemon [--lock FD] [--ready FD]`: run until it is told to go. Returns the exit code."""
    options = dict(zip(arguments[::2], arguments[1::2]))
    try:
        instance.enter_home(paths.home())
        lock = int(options["--lock"]) if "--lock" in options else instance.take_lock()
    except instance.Unusable as error:
        sys.stderr.write(f"encamp: {error}\n")
        return 1
    if lock is None:
        sys.stderr.write("encamp: another daemon is running already\n")
        return 1
    ready = int(options["--ready"]) if "--ready" in options else None
    for fd in (lock, ready):
        if fd is not None:
            os.set_inheritable(fd, False)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    faulthandler.enable()
    asyncio.run(_serve_home(lock, ready))
    return 0


async def _serve_home(lock: int, ready: Optional[int]) -> None:
    await Daemon(os.getcwd(), lock, ready).run()
    logging.shutdown()
    os._exit(0)  # leaving the loop would wait for its threads, and one may hang on a dead file system


class Daemon:
    """The server, its clock and its viewers."""

    def __init__(self, home: str, lock: int, ready: Optional[int] = None) -> None:
        self.home = home
        self._lock = lock
        self._ready = ready
        self._started = time.time()
        self._leaving = asyncio.Event()
        self._viewers: Set[Viewer] = set()
        self._tasks: Set[asyncio.Task[None]] = set()
        self._sample_line = b""
        self._sampled = 0.0
        self._last_needed = time.monotonic()

    async def run(self) -> None:
        """Serve until a signal, a `retire` request, a lost socket or a long time without work."""
        await self._startup()
        try:
            await self._main_loop()
        finally:
            await self._shutdown()

    # --- startup, main loop, shutdown -----------------------------------------------------------------------

    async def _startup(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_callback_error)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leaving.set)
        holder = instance.sign_lock(self._lock)
        self._identity = identity.Identity(self.home, holder, self._started)
        self._sampler = host.HostSampler(self.home)
        self._gpus = gpu.GpuMonitor(instance.agent_command("nvml"))
        self._gpus.start()
        self._cost = CostMeter()
        self._watcher = watch.Watcher(self.home)
        doer = actions.Actions(self.home, self._gpus, self._look, self._look_last)
        self._services = services.Services(self.home, self._watcher, doer, self._leaving.set)
        self._services.blobs.sweep()
        self._begin(self._sweep())
        self._server = await loop.create_unix_server(lambda: Viewer(self), sock=_listen())
        self._socket_inode = os.stat(instance.SOCKET).st_ino
        log.info("daemon %s of build %.12s is ready", holder.release, holder.build)
        if self._ready is not None:
            with contextlib.suppress(BrokenPipeError):  # the relay that started us was killed: others come
                os.write(self._ready, b"ready")
            os.close(self._ready)
        gc.collect()
        gc.freeze()  # what is loaded by now stays: no collection needs to look at it again

    async def _main_loop(self) -> None:
        due = time.monotonic()
        while not self._leaving.is_set():
            with self._boundary("tick"):
                self._tick()
            due = max(due + TICK_SECONDS, time.monotonic())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), due - time.monotonic())

    async def _shutdown(self) -> None:
        """Make room for another daemon first, then bring to an end what was begun here."""
        self._server.close()
        with contextlib.suppress(OSError):
            if os.stat(instance.SOCKET).st_ino == self._socket_inode:
                os.unlink(instance.SOCKET)
        for viewer in list(self._viewers):
            viewer.close()
        await actions.eventually(lambda: not self._viewers, CLOSE_SECONDS)
        for viewer in list(self._viewers):
            viewer.abort()
        await self._gpus.close()
        os.close(self._lock)
        if self._tasks:
            log.info("finishing %d requests", len(self._tasks))
            await asyncio.wait(self._tasks, timeout=IDLE_SECONDS)
        log.info("daemon ends")

    def _tick(self) -> None:
        now = time.monotonic()
        with self._boundary("sample"):
            self._take_sample(now)
        self._tell_all(self._watcher.tick(self._gpus.status().gpus))
        for key, stalled in self._watcher.stalls().items():
            self._look_into(key, stalled, now)
            rank = stalled.mute(now)
            if rank is not None:
                self._begin(self._listen(key, stalled, rank))
        for attempt in self._watcher.orphans():
            log.warning("%s attempt %d has lost its supervisor", attempt.run, attempt.number)
            self._begin(self._adopt(attempt))
        if self._viewers or self._tasks or self._watcher.any_live():
            self._last_needed = now
        elif now - self._last_needed > IDLE_SECONDS:
            log.info("nothing to do")
            self._leaving.set()
        if not self._owns_socket():
            log.warning("%s is gone or belongs to another daemon", instance.SOCKET)
            self._leaving.set()
        _bound_log()

    def _take_sample(self, now: float) -> None:
        part = self._sampler.sample()
        sample = wire.Sample(
            time=time.time(),
            monotonic=now,
            cpu=part.cpu,
            memory=part.memory,
            shm=part.shm,
            disk=part.disk,
            network=part.network,
            gpu=self._gpus.status(),
            agent=self._cost.read([os.getpid(), *self._watcher.supervisors()]),
            pids=part.pids,
        )
        self._watcher.host.add(sample)
        self._sample_line = wire.encode(sample)
        self._sampled = now
        for viewer in list(self._viewers):
            viewer.update("sample", self._sample_line)

    def _look(self) -> None:
        """Tell at once what has just been done to a run."""
        with self._boundary("look"):
            self._tell_all(self._watcher.look())

    def _tell_all(self, messages: Sequence[wire.Message]) -> None:
        for message in messages:
            if isinstance(message, wire.Run) and message.state in wire.END_STATES:
                # Its supervisor has done so, if it had one and was not killed.
                secret_file.remove(paths.attempt_dir(self.home, message.run, message.attempt))
            self._tell(message)

    async def _sweep(self) -> None:
        """Remove what was left by attempts and preparations that nobody saw the end of."""
        with self._boundary("sweep"):
            await actions.in_thread(secret_file.sweep, self.home)
            await actions.in_thread(prepare.sweep, self.home)

    async def _adopt(self, attempt: Attempt) -> None:
        with self._boundary("adoption"):
            await actions.in_thread(control.adopt, attempt)

    def _look_into(self, key: watch.Key, stalled: stall.StallWatch, now: float) -> None:
        """Find out what holds an attempt up, if that is due before the next tick."""
        wait = stalled.due(now)
        if wait is not None and wait < TICK_SECONDS:
            self._begin(self._investigate(key, stalled, wait))
        usual = stalled.to_keep()
        if usual:
            self._begin(self._keep(key, usual))

    async def _investigate(self, key: watch.Key, stalled: stall.StallWatch, wait: float) -> None:
        """Find out in `wait` seconds why the ranks of an attempt make no progress, if it is so then."""
        with self._boundary("investigation"):
            with stalled.looking(time.monotonic() + wait):
                await asyncio.sleep(wait)
                attempt = self._watcher.attempt(*key)
                known, gpus = stalled.known(time.monotonic()), self._gpus.status().gpus
                found = await actions.in_thread(inquiry.evidence, attempt, known, gpus, stalled.allowed)
                stalled.hold(rank.rank for rank in found.ranks if rank.gil_free is False)
                told = stalled.conclude(diagnose(found))
                if told is not None:
                    self._watcher.keep(key)
                    await actions.in_thread(inquiry.record, attempt, found, told)
                    self._look()
            if self._watcher.stalls().get(key) is stalled and not self._leaving.is_set():
                self._look_into(key, stalled, time.monotonic())

    async def _look_last(self, attempt: Attempt) -> None:
        """Write down what the ranks of an attempt show that somebody is about to end."""
        with self._boundary("last look"):
            await last_look.take(self._watcher, self._gpus.status().gpus, attempt)

    async def _keep(self, key: watch.Key, usual: float) -> None:
        """Write the rhythm of an attempt down, for a daemon that comes after this one."""
        with self._boundary("rhythm"):
            await actions.in_thread(inquiry.keep_rhythm, self._watcher.attempt(*key), usual)

    async def _listen(self, key: watch.Key, stalled: stall.StallWatch, rank: int) -> None:
        """Ask a rank that shows no steps how far it is in its collectives."""
        with self._boundary("listening"):
            folder = os.path.join(self._watcher.attempt(*key).dir, f"rank{rank}")
            counts, seconds = None, 0.0
            try:
                counts, seconds = await actions.in_thread(_timed_counts, folder)
            finally:
                stalled.hear(counts, seconds)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, message: wire.Message) -> None:
        if not self._viewers:
            return
        line = _encode(message)
        for viewer in list(self._viewers):
            if isinstance(message, wire.Ranks):
                viewer.update(f"ranks {message.run}", line)
            elif isinstance(message, wire.Progress):
                viewer.offer(line)
            else:
                viewer.send(line)

    def _owns_socket(self) -> bool:
        try:
            return os.stat(instance.SOCKET).st_ino == self._socket_inode
        except OSError:
            return False

    # --- viewers: see viewer.Hub ----------------------------------------------------------------------------

    def greet(self, viewer: Viewer) -> None:
        """Tell a new viewer who we are and all that is known."""
        self._viewers.add(viewer)
        viewer.send(wire.encode(self._identity.hello()))
        with self._boundary("first sample"):
            if time.monotonic() - self._sampled > 2 * TICK_SECONDS:
                self._take_sample(time.monotonic())
            viewer.send(self._sample_line)
        for message in self._watcher.known():
            viewer.send(_encode(message))
        viewer.send(wire.encode(wire.Ready()))

    def left(self, viewer: Viewer) -> None:
        """Forget a viewer."""
        self._viewers.discard(viewer)

    def serve(self, viewer: Viewer, request: wire.Request) -> None:
        """Serve one request, beside all others."""
        self._begin(self._serve(viewer, request))

    async def _serve(self, viewer: Viewer, request: wire.Request) -> None:
        answer: wire.Message = wire.Failure(
            request.id, "internal", "the agent made a mistake", f"see {os.path.join(self.home, instance.LOG)}"
        )
        with self._boundary(f"request {request.method[:40]!r}"):
            answer = await requests.answer(self._services, viewer, request)
        try:
            viewer.answer(answer, request.id)
        except wire.WireError as error:
            viewer.answer(
                wire.Failure(request.id, "too-large", f"the answer is too large: {error}"), request.id
            )

    @contextlib.contextmanager
    def _boundary(self, what: str) -> Iterator[None]:
        """The one place that catches everything: a mistake is logged, and the daemon goes on."""
        try:
            yield
        except Exception:
            log.exception("%s failed", what)


def _timed_counts(folder: str) -> Tuple[Optional[Tuple[int, ...]], float]:
    began = time.thread_time()
    return flight.counts(folder), time.thread_time() - began


def _encode(message: wire.Message) -> bytes:
    """The message as a line; nothing, and a word in the log, when what a run has in it makes it too long."""
    try:
        return wire.encode(message)
    except wire.WireError as error:
        log.error("left out: %s", error)
        return b""


def _listen() -> socket.socket:
    """A socket in the working directory. What another daemon left there is stale: we have the lock."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(instance.SOCKET)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.bind(instance.SOCKET)
    os.chmod(instance.SOCKET, 0o600)
    return sock


def _log_callback_error(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    error = context.get("exception")
    log.error("%s", context.get("message"), exc_info=error if isinstance(error, Exception) else None)


def _bound_log() -> None:
    """Start agent.log anew when it has grown too long. Standard output and error are open on it."""
    try:
        if os.fstat(2).st_size < LOG_BYTES or not os.path.samestat(os.fstat(2), os.stat(instance.LOG)):
            return
        os.rename(instance.LOG, instance.LOG + ".1")
        fd = os.open(instance.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)

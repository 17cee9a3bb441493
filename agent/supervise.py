"""The supervisor: one small process per attempt that starts the launcher, waits, and records the end.

It outlives the daemon. It has a session of its own, no threads and next to no imports, and it is the
subreaper of the whole attempt: processes that lose their parent become its children, so nothing escapes it
and no zombie stays behind where process 1 does not collect any.

Signals are blocked and taken one by one in `_pause`, so none is ever missed. SIGTERM begins a stop: the
launcher gets SIGTERM, and when the grace in stop.json is over everything gets SIGKILL. Another SIGTERM reads
stop.json again and can only shorten it. Whatever outlives the launcher is ended too. `exit.json` is the last
thing that is written. SIGUSR1 says that a rank was stopped for a while: its undo.json says until when.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

from . import ending, environment, files, process, reap, recording, values

WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGUSR2)

FOREVER = 3600.0
"""Seconds between two looks when there is nothing to look for: signals wake us."""

ADOPTED_LOOK_SECONDS = 0.25
"""Seconds between two looks at a launcher that is not our child."""

SETTLE_SECONDS = 1.0
"""How long helpers of the ranks may take to notice that they are not needed any more."""

LEFTOVER_GRACE_SECONDS = 5.0
"""How long what outlives the launcher may take after SIGTERM, where the attempt allows so much."""

KILL_SECONDS = 30.0
"""How long after SIGKILL a process is given up: it hangs in the kernel."""

COLLECT_SECONDS = 2.0
"""How long the launcher's exit code is waited for when it had to be killed."""

CONFIRM_SECONDS = 40.0
"""How long a run on several hosts may take to be confirmed by whoever launched it, or to have a rank here.

Ranks begin only when all hosts are there."""

CALLED_OFF_GRACE_SECONDS = 5.0
"""How long a launcher that waits for other hosts in vain may take after SIGTERM."""


def main(arguments: list[str]) -> int:
    """`supervise [--adopt] ATTEMPT_DIR`. Writes `ready` to standard output when the launcher runs.

    Exit codes: 0 the end is recorded, 1 the attempt cannot be supervised, 3 another supervisor does it.
    """
    adopt = "--adopt" in arguments
    attempt_dir = os.path.abspath(arguments[-1])
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if os.getsid(0) != os.getpid():
        os.setsid()
    os.chdir("/")
    if not _take_lock(attempt_dir):
        sys.stderr.write(f"encamp: {attempt_dir} has a supervisor already\n")
        return 3
    spec = files.read_json(os.path.join(attempt_dir, "spec.json"))
    resolved = spec.get("resolved") if spec else None
    if not isinstance(resolved, dict):
        sys.stderr.write(f"encamp: {attempt_dir} has no spec.json that can be read\n")
        return 1
    process.adopt_orphans()
    supervisor = Supervisor(attempt_dir, spec or {}, resolved)
    supervisor.sign(adopt)
    if adopt:
        supervisor.take_over()
    else:
        supervisor.start()
    _say_ready()
    supervisor.run()
    return 0


class Supervisor:
    """One attempt from the start of its launcher to its end."""

    def __init__(self, attempt_dir: str, spec: dict[str, object], resolved: dict[str, object]) -> None:
        self._dir = attempt_dir
        self._argv = values.strings(resolved.get("argv"))
        self._env = {str(k): str(v) for k, v in values.table(resolved.get("env")).items()}
        self._cwd = str(resolved.get("cwd") or "/")
        self._launcher_name = str(resolved.get("launcher") or "the launcher")
        nproc = values.integer(resolved.get("nproc_per_node")) or 1
        placement = values.table(spec.get("placement"))
        first = (values.integer(placement.get("node_rank")) or 0) * nproc
        self._ranks = range(first, first + nproc)
        """The global ranks of this host."""
        nodes = placement.get("nodes")
        self._others = isinstance(nodes, list) and len(nodes) > 1
        self._confirm_by: float | None = None
        """`time.monotonic()` at which it must be sure that the other hosts were started as well."""
        self._called_off = False
        self._resume_at: float | None = None
        """`time.monotonic()` at which a rank is to go on that was stopped."""
        self._default_grace = values.number(spec.get("stop_grace_seconds"), 30.0)
        self._tree = reap.Tree(attempt_dir, self._env, os.getpid())
        self._launcher = (0, 0)
        self._ours = True
        """Whether the launcher is our child, so that we learn its exit code."""
        self._code: int | None = None
        self._collected = False
        self._told = False
        """Whether SIGTERM reached us."""
        self._kill_at: float | None = None
        """`time.monotonic()` at which the grace of a stop is over."""
        self._ended: dict[int, int] = {}
        """What we had to end ourselves because nobody else did."""
        self._killed: dict[int, int] = {}
        """What of that, or of the ranks, did not end by SIGTERM."""
        self._oom_kills: int | None = None

    # --- the beginning ------------------------------------------------------------------------------------

    def sign(self, adopting: bool) -> None:
        """Write supervisor.json. Raises OSError."""
        path = self._path("supervisor.json")
        before = (files.read_json(path) if adopting else None) or {}
        self._oom_kills = values.integer(before.get("oom_kills")) if adopting else ending.oom_kills()
        me = os.getpid()
        found = {
            "pid": me,
            "start_time": process.start_time(me),
            "boot_id": process.boot_id(),
            "started": before.get("started", time.time()),
            "oom_kills": self._oom_kills,
        }
        files.write_json(path, found)
        if self._others:
            passed = max(0.0, time.time() - values.number(found["started"], 0.0))
            self._confirm_by = time.monotonic() + max(0.0, CONFIRM_SECONDS - passed)
        for name in ("stop.json", "exit.json"):  # a full disk must not keep a run from ending
            if not os.path.exists(self._path(name)):
                files.reserve(self._path(name))

    def start(self) -> None:
        """Start the launcher in a session of its own. Raises OSError."""
        log = os.open(self._path("launcher.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        pid = os.fork()
        if pid == 0:
            self._become_launcher(log)
        os.close(log)
        self._launcher = (pid, process.start_time(pid) or 0)
        try:
            files.write_json(self._path("launcher.json"), {"pid": pid, "start_time": self._launcher[1]})
        except OSError:
            pass  # a disk that has just become full: whoever takes over finds it by its marks

    def _become_launcher(self, log: int) -> None:
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDONLY)
            for target, source in enumerate((null, log, log)):
                os.dup2(source, target)
            for number in (*IGNORED, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
            os.chdir(self._cwd)
            os.execve(self._argv[0], self._argv, {**environment.inherited(), **self._env})
        except OSError as error:
            os.write(2, f"encamp: cannot start {self._argv[0]} in {self._cwd}: {error.strerror}\n".encode())
        finally:
            os._exit(127)  # whatever happens in the child, it never returns into its parent's code

    def take_over(self) -> None:
        """Watch what another supervisor has started."""
        self._ours = False
        launcher = reap.read_identity(self._path("launcher.json"))
        if launcher is None:  # the other supervisor came no further: the launcher is the oldest of all
            members = self._tree.members().items()
            launcher = min(members, key=lambda member: member[1]) if members else (0, 0)
        self._launcher = launcher

    # --- the life -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Wait for the end, end what is left, and record it. A stop that was asked for before us counts."""
        if os.path.exists(self._path("stop.json")):
            self._begin_stop()
        self._resume_stopped()
        self._wait_for_launcher()
        self._end_leftovers()
        self._record_end()

    def _launcher_lives(self) -> bool:
        if self._ours:
            return not self._collected
        return self._launcher[0] > 0 and process.alive(*self._launcher)

    def _wait_for_launcher(self) -> None:
        pause = FOREVER if self._ours else ADOPTED_LOOK_SECONDS
        while self._launcher_lives():
            if self._confirm_by is not None and time.monotonic() >= self._confirm_by:
                self._confirm_by = None
                if not self._confirmed():
                    self._call_off()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._killed.update(self._tree.members())
                self._kill_all(dict(self._killed))
                return
            self._pause(pause)

    def _confirmed(self) -> bool:
        """Whether the other hosts were started too, as far as can be told from here."""
        if os.path.exists(self._path("confirmed.json")):
            return True
        return any(os.path.exists(self._path(f"rank{rank}", "rank.json")) for rank in self._ranks)

    def _call_off(self) -> None:
        """End a launcher that waits for hosts of which nobody knows whether they will ever come."""
        self._called_off = True
        self._shorten_grace(CALLED_OFF_GRACE_SECONDS)
        reap.send({self._launcher[0]: self._launcher[1]}, signal.SIGTERM)

    def _end_leftovers(self) -> None:
        """End what outlived the launcher: first by waiting, then by asking, then by force."""
        left = self._wait_until_gone(self._tree.members(), SETTLE_SECONDS)
        if not left:
            return
        self._ended.update(left)
        reap.ask_to_end(left)
        left = self._wait_until_gone(left, min(self._default_grace, LEFTOVER_GRACE_SECONDS))
        left.update(self._tree.members())
        if left:
            self._ended.update(left)
            self._killed.update(left)
            self._kill_all(left)

    def _wait_until_gone(self, members: dict[int, int], seconds: float) -> dict[int, int]:
        """Wait at most so long, less when a stop allows less; returns those that are still there."""
        deadline = time.monotonic() + seconds
        while members:
            now = time.monotonic()
            if now >= deadline or (self._kill_at is not None and now >= self._kill_at):
                break
            self._pause(0.02)
            members = {pid: started for pid, started in members.items() if process.alive(pid, started)}
        return members

    def _kill_all(self, members: dict[int, int]) -> None:
        deadline = time.monotonic() + KILL_SECONDS
        while members and time.monotonic() < deadline:
            reap.kill(members)
            pause = time.monotonic() + 0.2
            while any(process.alive(*member) for member in members.items()) and time.monotonic() < pause:
                self._pause(0.01)
            members = self._tree.members()

    def _begin_stop(self) -> None:
        """Begin a stop, or shorten the one that has begun."""
        stop = files.read_json(self._path("stop.json")) or {}
        grace = max(0.0, values.number(stop.get("grace_seconds"), self._default_grace))
        self._shorten_grace(grace)
        if not self._told and self._launcher_lives():
            reap.send({self._launcher[0]: self._launcher[1]}, signal.SIGTERM)
            reap.send(self._tree.members(), signal.SIGCONT)  # a stopped rank could not act on it
        self._told = True

    def _resume_stopped(self) -> None:
        """Let ranks go on that were stopped until now, and find out when the next one is to."""
        self._resume_at = None
        for rank in self._ranks:
            path = self._path(f"rank{rank}", "undo.json")
            at = (files.read_json(path) or {}).get("at")
            if not isinstance(at, (int, float)):
                continue
            if at > time.monotonic():
                self._resume_at = at if self._resume_at is None else min(at, self._resume_at)
                continue
            identity = reap.read_identity(self._path(f"rank{rank}", "rank.json"))
            reap.send({} if identity is None else dict([identity]), signal.SIGCONT)
            recording.add_event(self._dir, "signal", f"SIGCONT to rank {rank}: it was stopped until now")
            try:
                os.unlink(path)
            except OSError:
                pass  # somebody else has just done so

    def _shorten_grace(self, seconds: float) -> None:
        kill_at = time.monotonic() + seconds
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _pause(self, seconds: float) -> None:
        """Sleep until a signal comes, one of our times has come or is up, and act on what came."""
        for until in (self._kill_at, self._confirm_by, self._resume_at):
            if until is not None:
                seconds = min(seconds, max(0.0, until - time.monotonic()))
        got = signal.sigtimedwait(WATCHED, seconds)
        number = 0 if got is None else got.si_signo
        if number == signal.SIGTERM:
            self._begin_stop()
        if number == signal.SIGUSR1 or (self._resume_at and self._resume_at <= time.monotonic()):
            self._resume_stopped()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._launcher[0] and self._ours:
                self._collected = True
                self._code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    # --- the end ------------------------------------------------------------------------------------------

    def _record_end(self) -> None:
        deadline = time.monotonic() + COLLECT_SECONDS
        while self._ours and not self._collected and time.monotonic() < deadline:
            self._pause(0.01)
        stop = files.read_json(self._path("stop.json"))
        if not self._ours:
            self._code = recording.code_from_ranks(self._dir, self._ranks)
        left = self._tree.members()
        reason = self._reason(stop, left)
        recording.record_ranks(self._dir, self._ranks)
        recording.remove_secrets(self._dir)
        reaped = sorted({*self._ended, *self._killed} - {self._launcher[0]})
        end: dict[str, object] = {"code": self._code, "time": time.time(), "reason": reason, "reaped": reaped}
        name = "finished" if self._code == 0 else "stopped" if stop is not None else "failed"
        recording.add_event(self._dir, name, reason)
        recording.write_end(self._dir, end)

    def _reason(self, stop: dict[str, object] | None, left: dict[int, int]) -> str:
        parts = []
        if self._code == 0:
            if self._ended:
                parts.append(f"{_count(self._ended)} that outlived the ranks had to be ended")
        elif stop is not None and self._told:
            parts.append(f"stopped by {ending.sentence(str(stop.get('actor') or 'somebody'))}")
            if self._killed:
                grace = values.number(stop.get("grace_seconds"), self._default_grace)
                parts.append(f"{_count(self._killed)} did not end within {grace:g} s and had to be killed")
        elif self._called_off:
            parts.append("the other hosts were not started: the encamp that launched it was lost")
        else:
            if self._told:
                parts.append("the supervisor was told to end (SIGTERM): is the host shutting down?")
            kills = ending.oom_kills()
            out_of_memory = kills is not None and self._oom_kills is not None and kills > self._oom_kills
            parts.append(
                ending.reason_of_failure(
                    self._dir, self._ranks, self._code, self._launcher_name, out_of_memory
                )
            )
            if self._ended:
                parts.append(f"{_count(self._ended)} that it left behind had to be ended")
        for pid in left:
            where = process.wait_channel(pid)
            parts.append(f"process {pid} cannot be killed{f', it hangs in {where}' if where else ''}")
        return "; ".join(parts)

    def _path(self, *names: str) -> str:
        return os.path.join(self._dir, *names)


def _say_ready() -> None:
    """Tell whoever started us that the launcher runs, and let go of standard output."""
    try:
        os.write(1, b"ready\n")
    except OSError:
        pass  # the daemon has gone meanwhile: the attempt has not
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _take_lock(attempt_dir: str) -> bool:
    """Whether this process is now the attempt's only supervisor. The lock goes with the process."""
    lock = os.open(os.path.join(attempt_dir, "supervisor.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: supervisor.json has to do
    return True


def _count(members: dict[int, int]) -> str:
    return "1 process" if len(members) == 1 else f"{len(members)} processes"

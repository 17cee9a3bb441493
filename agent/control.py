"""What is done to runs: launching, restarting, stopping, and giving an attempt a new supervisor.

Everything here blocks: on the disk, and a launch also while an interpreter is asked for torch and the
supervisor starts. Call it in a thread.
"""

from __future__ import annotations

import errno
import os
import pkgutil
import select
import shutil
import signal
import subprocess
import time
from typing import Dict, NamedTuple, Optional, Tuple

from . import ending, environment, files, instance, paths, reap, wire
from . import launch as launching
from .attempt import START_SECONDS, Attempt
from .errors import RunError
from .runs import current

MAX_ACTOR = 200


class Started(NamedTuple):
    """What was started, or with a dry run would be. `env` is only what is set on top of the daemon's own."""

    run: str
    attempt: int
    world_size: int
    nproc_per_node: int
    python: str
    argv: Tuple[str, ...]
    env: Dict[str, str]
    cwd: str


def plan(home: str, spec: wire.LaunchSpec, *, gpus: int = 0, cores: Optional[int] = None) -> Started:
    """What `launch` would start. Writes nothing. Raises RunError."""
    _refuse_existing(home, spec)
    command = launching.resolve(home, spec, 1, gpus=gpus, cores=cores)
    return _started(spec.run, 1, command)


def launch(
    home: str, spec: wire.LaunchSpec, actor: str, *, gpus: int = 0, cores: Optional[int] = None
) -> Started:
    """Create the run and start its first attempt; returns when its launcher has been started.

    `gpus` is how many GPUs this host has and `cores` how many cores it may use (None: find out), for specs
    that leave the number of ranks to the host. Raises RunError, after which there is no such run, but with
    `not-started`: then it is there as a failed one.
    """
    _refuse_existing(home, spec)
    command = launching.resolve(home, spec, 1, gpus=gpus, cores=cores)
    folder = paths.run_dir(home, spec.run)
    try:
        files.make_dirs(paths.runs_dir(home))
        os.mkdir(folder, 0o700)
    except FileExistsError:
        raise _exists(spec.run) from None
    except OSError as error:
        raise _unwritable(error) from error
    try:
        values = {
            "run": spec.run,
            "name": spec.name,
            "profile": spec.profile,
            "strategy": spec.strategy,
            "created": time.time(),
        }
        files.write_json(paths.run_file(home, spec.run), values)
        attempt = create(home, spec, 1, command)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _unwritable(error) from error
    add_event(attempt, "launched", actor, f"{command.nproc_per_node} ranks with {command.launcher}")
    _start_supervisor(attempt)
    return _started(spec.run, 1, command)


def restart(home: str, run: str, actor: str, *, gpus: int = 0, cores: Optional[int] = None) -> Started:
    """Start the next attempt of a run with the spec of its current one, which must have ended.

    Raises RunError: `no-run`, `busy` when the current attempt lives, and what `launch` raises.
    """
    before = current(home, run)
    spec = before.launch_spec()
    if spec is None:
        raise RunError("no-run", f"what run {run!r} was launched with cannot be read any more")
    if not before.condition().over:
        raise RunError("busy", f"attempt {before.number} of {run} has not ended", "stop it first")
    number = before.number + 1
    command = launching.resolve(home, spec, number, gpus=gpus, cores=cores)
    try:
        attempt = create(home, spec, number, command)
    except FileExistsError:
        raise RunError("busy", f"attempt {number} of {run} is just being started by somebody else") from None
    except OSError as error:
        shutil.rmtree(paths.attempt_dir(home, run, number), ignore_errors=True)
        raise _unwritable(error) from error
    add_event(attempt, "restarted", actor, f"attempt {number} follows attempt {before.number}")
    _start_supervisor(attempt)
    return _started(run, number, command)


def stop(home: str, run: str, actor: str, grace_seconds: Optional[float] = None) -> Attempt:
    """Begin to stop a run's current attempt, or make a stop that has begun shorter; do not wait for the end.

    `grace_seconds` None means what the spec says. An attempt that has ended is left as it is, and so is a
    stop that ends sooner than this one would. Returns the attempt: it is stopped when its `condition()` is
    over. Raises RunError `no-run`.
    """
    attempt = current(home, run)
    condition = attempt.condition()
    if condition.over:
        return attempt
    spec = attempt.launch_spec()
    if grace_seconds is None:
        grace_seconds = spec.stop_grace_seconds if spec is not None else 0.0
    _write_stop(attempt, actor[:MAX_ACTOR], max(0.0, grace_seconds))
    supervisor = attempt.supervisor()
    if supervisor is not None:
        reap.send(dict([supervisor]), signal.SIGTERM)
    elif condition.unwatched:
        adopt(attempt)
    return attempt


def _write_stop(attempt: Attempt, actor: str, grace_seconds: float) -> None:
    """Say for the supervisor who stops the attempt, and how. On a full disk it stops all the same, unsaid."""
    path = os.path.join(attempt.dir, "stop.json")
    now = time.time()
    before = files.read_json(path) or {}
    at, grace = before.get("time"), before.get("grace_seconds")
    if isinstance(at, (int, float)) and isinstance(grace, (int, float)) and at + grace <= now + grace_seconds:
        return
    try:
        files.write_json_in_reserve(path, {"time": now, "actor": actor, "grace_seconds": grace_seconds})
    except OSError:
        return
    add_event(attempt, "stop", actor, f"with {grace_seconds:g} s grace")


def adopt(attempt: Attempt) -> None:
    """Give an attempt whose supervisor was killed a new one. Raises RunError `not-started`."""
    _start_supervisor(attempt, "--adopt")


def add_event(attempt: Attempt, name: str, actor: str, text: str) -> None:
    """Add a line to the attempt's events. Where the disk is full the action goes on and the event is lost."""
    event = {"time": time.time(), "name": name, "actor": actor[:MAX_ACTOR], "text": text}
    try:
        files.append_json_line(os.path.join(attempt.dir, "events.jsonl"), event)
    except OSError:
        pass


def _started(run: str, attempt: int, command: launching.Command) -> Started:
    return Started(
        run, attempt, command.world_size, command.nproc_per_node, command.python, command.argv, command.env,
        command.cwd,
    )  # fmt: skip


def _refuse_existing(home: str, spec: wire.LaunchSpec) -> None:
    """Say so before an interpreter is asked for torch. Raises RunError."""
    launching.check(spec)
    if os.path.exists(paths.run_dir(home, spec.run)):
        raise _exists(spec.run)


def _exists(run: str) -> RunError:
    return RunError(
        "exists", f"there is a run {run!r} on this host already", "restart it, or choose another id"
    )


def _unwritable(error: OSError) -> RunError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(
            "no-space", "no space is left on this host for a run", "remove old runs or other files"
        )
    return RunError(
        "not-started", f"cannot write the run's folder: {error.strerror}", f"see {error.filename}"
    )


def create(home: str, spec: wire.LaunchSpec, number: int, command: launching.Command) -> Attempt:
    """Claim the attempt's number and write all that its supervisor needs. Raises OSError."""
    attempt = Attempt(home, spec.run, number)
    files.make_dirs(paths.attempts_dir(home, spec.run))
    files.make_dirs(paths.checkpoints_dir(home, spec.run))
    os.mkdir(attempt.dir, 0o700)
    shim = pkgutil.get_data(__package__ or "agent", "rank.py")
    assert shim is not None, "the shim is part of every build"
    files.write_bytes(os.path.join(attempt.dir, "rank.py"), shim)
    files.write_json(
        os.path.join(attempt.dir, "spec.json"), {**wire.to_json(spec), "resolved": command._asdict()}
    )
    os.utime(paths.runs_dir(home))  # tells every Registry
    return attempt


def _start_supervisor(attempt: Attempt, *options: str) -> None:
    """Start a supervisor that outlives us and wait until it has started the launcher.

    The shell between us and it ends at once, so it is nobody's child and nobody has to collect it. Raises
    RunError `not-started`, after the end of an attempt that did not begin has been recorded.
    """
    command = instance.agent_command("supervise", *options, attempt.dir)
    log = os.open(
        os.path.join(attempt.dir, "launcher.log"),
        os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
        0o600,
    )
    try:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            cwd="/",
            env={**environment.inherited(), "ENCAMP_HOME": attempt.home},  # tells whose it is
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    with shell:
        assert shell.stdout is not None
        ready, _, _ = select.select([shell.stdout], [], [], START_SECONDS)
        word = os.read(shell.stdout.fileno(), 64) if ready else b""
    if word.startswith(b"ready") or options:
        return  # an adoption that fails finds another supervisor at work, or the end recorded
    detail = ending.last_line(ending.launcher_tail(attempt.dir)) or "it said nothing"
    reason = f"the supervisor did not start: {detail}"
    if not os.path.exists(os.path.join(attempt.dir, "supervisor.json")):
        end: Dict[str, object] = {"code": None, "time": time.time(), "reason": reason, "reaped": []}
        try:
            files.write_json(os.path.join(attempt.dir, "exit.json"), end)
        except OSError:
            pass  # it is found out without that record, only later
    raise RunError("not-started", reason, f"see {os.path.join(attempt.dir, 'launcher.log')}")

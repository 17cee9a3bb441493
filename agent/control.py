"""What is done to runs: launching, restarting, starting what was prepared, stopping, adopting.

Everything here blocks: on the disk, and a launch also while an interpreter is asked for torch and the
supervisor starts. Call it in a thread.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from typing import Dict, Optional

from . import claims, ending, environment, files, instance, prepare, reap, secret_file, wire
from .attempt import START_SECONDS, Attempt
from .errors import RunError
from .prepare import MAX_ACTOR, Hardware, Order, Started, add_event
from .runs import current

SIGN_SECONDS = 1.0
"""How long a supervisor takes at most from having the attempt to saying so."""


def launch(home: str, order: Order, hardware: Hardware) -> Started:
    """Create the run and start its first attempt, on this host alone; returns when its launcher runs.

    Raises RunError, after which there is no such run, but with `not-started`: then it is there as a failed
    one.
    """
    attempt, started = prepare.prepare(home, order, hardware, lease=False)
    _start_supervisor(attempt)
    return started


def next_order(
    home: str,
    run: str,
    actor: str,
    secrets: Optional[Dict[str, str]] = None,
    forced: str = "",
    resume_step: Optional[int] = None,
    follows: Optional[int] = None,
) -> Order:
    """The next attempt of a run with the spec of its current one. Raises RunError.

    `follows` is the attempt that whoever asks has seen. Codes: `no-run`, `superseded` when there is a later
    one, and `bad-request` when it runs on several hosts.
    """
    before = current(home, run)
    prepare.refuse_superseded(before, follows)
    spec = before.launch_spec()
    if spec is None:
        raise RunError("no-run", f"what run {run!r} was launched with cannot be read any more")
    placement = before.placement()
    if placement is not None and len(placement.nodes) > 1:
        raise RunError(
            "bad-request", f"{run} runs on {len(placement.nodes)} hosts", "restart it on all of them at once"
        )
    return Order(
        spec, actor, before.number + 1, secrets=secrets or {}, forced=forced, resume_step=resume_step
    )


def start(home: str, run: str, number: int) -> None:
    """Start a prepared attempt; returns when its launcher runs. One that has been started is left as it is.

    Raises RunError: `no-run`, `expired` when it was not started in time or was stopped, `not-started`.
    """
    attempt = _existing(home, run, number)
    with claims.lock(home):
        condition = attempt.condition()
        if attempt.was_supervised():
            return
        if condition.over:
            code = "expired" if attempt.prepared() else "not-started"
            raise RunError(
                code, f"attempt {number} of {run}: {condition.reason}", "launch or restart it again"
            )
        os.utime(os.path.join(attempt.dir, "spec.json"))  # its supervisor gets the usual time from here on
        os.unlink(os.path.join(attempt.dir, "prepared.json"))
    _start_supervisor(attempt)


def confirm(home: str, run: str, number: int) -> None:
    """Say that all hosts have started the attempt. Raises RunError `no-run`, `not-started`; OSError."""
    attempt = _existing(home, run, number)
    if attempt.prepared():
        raise RunError("not-started", f"attempt {number} of {run} was not started on this host")
    files.write_json(os.path.join(attempt.dir, "confirmed.json"), {"time": time.time()})


def abandon(home: str, run: str, number: int, rendezvous_id: str = "") -> bool:
    """Remove a prepared attempt as if it had never been; returns whether it has begun, and is to be stopped.

    With a `rendezvous_id` an attempt with another one is left alone: somebody else's of the same name.
    """
    if not wire.RUN_ID.match(run):
        return False
    attempt = Attempt(home, run, number)
    placement = attempt.placement()
    if rendezvous_id and (placement is None or placement.rendezvous_id != rendezvous_id):
        return False
    with claims.lock(home):
        if not os.path.isdir(attempt.dir):
            return False
        if not attempt.prepared():
            return not attempt.condition().over and current(home, run).number == number
        old = prepare.remove(home, run, number)
    shutil.rmtree(old, ignore_errors=True)
    return False


def _existing(home: str, run: str, number: int) -> Attempt:
    attempt = Attempt(home, run, number) if wire.RUN_ID.match(run) else None
    if attempt is None or not attempt.spec():
        raise RunError("no-run", f"there is no attempt {number} of {run[:80]!r} on this host")
    return attempt


def stop(
    home: str, run: str, actor: str, grace_seconds: Optional[float] = None, seen: Optional[int] = None
) -> Attempt:
    """Begin to stop a run's current attempt, or make a stop that has begun shorter; do not wait for the end.

    `grace_seconds` None means what the spec says. An attempt that has ended is left as it is, and so is a
    stop that ends sooner than this one would. Returns the attempt: it is stopped when its `condition()` is
    over. Raises RunError `no-run`, and `superseded` when there is a later attempt than `seen`.
    """
    attempt = current(home, run)
    prepare.refuse_superseded(attempt, seen)
    with claims.lock(home):
        condition = attempt.condition()
        if condition.over:
            return attempt
        if attempt.prepared():
            _stop_prepared(attempt, actor[:MAX_ACTOR])
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


def _stop_prepared(attempt: Attempt, actor: str) -> None:
    """End an attempt that waits for its start, which then is refused. Raises OSError."""
    _write_stop(attempt, actor, 0.0)
    reason = f"stopped by {ending.sentence(actor)} before it was started"
    end: Dict[str, object] = {"code": None, "time": time.time(), "reason": reason, "reaped": []}
    files.write_json(os.path.join(attempt.dir, "exit.json"), end)
    secret_file.remove(attempt.dir)


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
    if _is_supervised(attempt):
        return
    detail = ending.last_line(ending.launcher_tail(attempt.dir)) or "it said nothing"
    reason = f"the supervisor did not start: {detail}"
    secret_file.remove(attempt.dir)
    if not os.path.exists(os.path.join(attempt.dir, "supervisor.json")):
        end: Dict[str, object] = {"code": None, "time": time.time(), "reason": reason, "reaped": []}
        try:
            files.write_json(os.path.join(attempt.dir, "exit.json"), end)
        except OSError:
            pass  # it is found out without that record, only later
    raise RunError("not-started", reason, f"see {os.path.join(attempt.dir, 'launcher.log')}")


def _is_supervised(attempt: Attempt) -> bool:
    """Whether another supervisor was faster than one of ours; it may not have said so yet."""
    deadline = time.monotonic() + SIGN_SECONDS
    while attempt.supervisor() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return attempt.supervisor() is not None

"""Making an attempt ready to be started: its place in the disk's order of things, and all that it needs.

Everything that can be refused is refused here, so that on several hosts all can say yes before one starts.
What this writes is an attempt that counts from the moment in which it can be seen; nothing runs yet.
Everything here blocks on the disk, and while an interpreter is asked for torch.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import pkgutil
import shutil
import time
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from . import claims, files, launchers, paths, process, project, reap, runs, secret_file, wire
from . import launch as launching
from .attempt import Attempt
from .errors import RunError

MAX_ACTOR = 200
MAX_FORCED = 1000
"""Characters of the reason for which somebody launches in spite of an objection."""


@dataclasses.dataclass(frozen=True)
class Order:
    """What somebody wants: an attempt of a run, on this host or on this one among others."""

    spec: wire.LaunchSpec
    actor: str
    attempt: int = 1
    placement: Optional[wire.Placement] = None
    secrets: Dict[str, str] = dataclasses.field(default_factory=dict, repr=False)
    forced: str = ""
    """Why the GPUs are taken although another run holds them; empty when they are not."""
    note: str = ""
    """What else the event of its beginning says."""
    resume_step: Optional[int] = None
    """The trainer goes on from this checkpoint, and newer ones do not count any more; 0: from none."""


class Hardware(NamedTuple):
    """What a launch may use of this host. `cores` None: find out."""

    gpus: Sequence[wire.GpuSample] = ()
    cores: Optional[int] = None


class Started(NamedTuple):
    """What was started, or will be. `env` is only what is set on top of the daemon's own."""

    run: str
    attempt: int
    world_size: int
    nproc_per_node: int
    python: str
    argv: Tuple[str, ...]
    env: Dict[str, str]
    cwd: str
    torch: str
    cuda: Optional[str]
    port: int
    secrets: Tuple[str, ...]
    """Names of the variables that the ranks get besides `env`."""


def plan(home: str, order: Order, hardware: Hardware, gpus_may_be_held: bool = False) -> Started:
    """What `prepare` would make ready. Writes nothing. Raises RunError.

    With `gpus_may_be_held` the attempt before it need not have ended: it is to be stopped first.
    """
    command = _resolve(home, order, hardware, may_live=gpus_may_be_held, planned=True)
    if not gpus_may_be_held and not order.forced:
        claims.refuse_held(home, order.spec.run, command.gpus)
    return started(order, command)


def prepare(home: str, order: Order, hardware: Hardware, *, lease: bool) -> Tuple[Attempt, Started]:
    """Claim the attempt's number and the GPUs, and write all that its supervisor needs.

    With `lease` the attempt is over when it is not started within `attempt.PREPARED_SECONDS`. Raises
    RunError: `exists`, `busy`, `gpus-held`, and what `launch.resolve` raises; nothing is left behind then.
    """
    secret_file.check(order.spec, order.secrets)
    command = _resolve(home, order, hardware)
    run, forced = order.spec.run, order.forced.strip()[:MAX_FORCED]
    if not forced:
        _refuse_left(home, order)
    folder = paths.run_dir(home, run)
    staged = ""
    try:
        if not forced:
            claims.refuse_held(home, run, command.gpus)  # before anything is copied
        if not os.path.exists(folder):
            staged = _stage(home, order.spec)
        elif order.spec.project is not None and not os.path.exists(paths.run_code_dir(home, run)):
            project.copy(home, order.spec.project, paths.run_code_dir(home, run))
        with claims.lock(home):
            _refuse_taken(home, order)
            held = claims.holders(home, run, command.gpus)
            if not forced:
                claims.refuse_held(home, run, command.gpus)
            if staged:
                os.rename(staged, folder)
            attempt = _create(home, order, command, hardware, lease)
    except OSError as error:
        raise _unwritable(error) from error
    finally:
        if staged:
            shutil.rmtree(staged, ignore_errors=True)
    if forced:
        text = f"{forced} ({claims.describe(held, command.gpus)})" if held else forced
        add_event(attempt, "forced", order.actor, text)
    add_event(attempt, *_event(order, command))
    return attempt, started(order, command)


def _resolve(
    home: str, order: Order, hardware: Hardware, *, may_live: bool = False, planned: bool = False
) -> launching.Command:
    """Work out what is to be executed, after what can be refused without asking an interpreter."""
    launching.check(order.spec)
    if order.resume_step is not None and order.spec.target_kind != "task":
        raise RunError(
            "bad-spec",
            f"only {order.spec.target} itself knows how to go on from step {order.resume_step}",
            "restart it without --from, or launch it with the argument that it takes for that",
        )
    _refuse_taken(home, order, may_live)
    command = launching.resolve(
        home, order.spec, order.attempt, order.placement,
        gpus=hardware.gpus, cores=hardware.cores, planned=planned,
    )  # fmt: skip
    if order.resume_step is not None:
        command.env["ENCAMP_RESUME_STEP"] = str(order.resume_step)
    return command


def _refuse_taken(home: str, order: Order, may_live: bool = False) -> None:
    run, number = order.spec.run, order.attempt
    if number < 1:
        raise RunError("bad-spec", f"attempt {number} is not possible", "the first one is 1")
    if number == 1 and os.path.exists(paths.run_dir(home, run)):
        raise RunError(
            "exists", f"there is a run {run!r} on this host already", "restart it, or choose another id"
        )
    found = runs.numbers(home, run)
    if not found:
        return
    newest = Attempt(home, run, found[-1])
    refuse_superseded(newest, number - 1)
    if not may_live and not newest.condition().over:
        raise RunError("busy", f"attempt {newest.number} of {run} has not ended", "stop it first")


def refuse_superseded(newest: Attempt, seen: Optional[int]) -> None:
    """Raise RunError `superseded` when there is a later attempt than the one that somebody has seen."""
    if seen is not None and newest.number > seen:
        raise RunError(
            "superseded",
            f"attempt {newest.number} of {newest.run} was begun meanwhile by {newest.actor()}",
            "look at that one first",
        )


def _refuse_left(home: str, order: Order) -> None:
    """Raise RunError `left-alive` while a process of the attempt before lives that nothing could end."""
    before = Attempt(home, order.spec.run, order.attempt - 1)
    env = before.resolved().get("env")
    left = reap.Tree(before.dir, env).members() if isinstance(env, dict) else {}
    if left:
        pid = min(left)
        where = process.wait_channel(pid)
        raise RunError(
            "left-alive",
            f"process {pid} of attempt {before.number} cannot be ended"
            + (f": it hangs in the kernel, in {where}" if where else ""),
            "reboot the host, or wait until what it hangs in answers",
        )


def _stage(home: str, spec: wire.LaunchSpec) -> str:
    """Make the run's folder under another name, complete but for its attempt. Raises OSError, RunError."""
    staged = paths.staged_dir(home, spec.run, "new")
    values = {
        "run": spec.run,
        "name": spec.name,
        "profile": spec.profile,
        "strategy": spec.strategy,
        "created": time.time(),
    }
    files.make_dirs(paths.runs_dir(home))
    shutil.rmtree(staged, ignore_errors=True)
    try:
        os.mkdir(staged, 0o700)
        files.write_json(os.path.join(staged, "run.json"), values)
        if spec.project is not None:
            project.copy(home, spec.project, os.path.join(staged, "code"))
    except (OSError, RunError):
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return staged


def _create(home: str, order: Order, command: launching.Command, hardware: Hardware, lease: bool) -> Attempt:
    """`create`, or nothing is left. The caller has the lock. Raises OSError."""
    run, number = order.spec.run, order.attempt
    used = {str(gpu.index): gpu.memory_used_bytes for gpu in hardware.gpus if gpu.index in command.gpus}
    try:
        return create(
            home, order.spec, number, command, lease=lease, secrets=order.secrets,
            placement=None if order.placement is None else wire.to_json(order.placement),
            actor=order.actor[:MAX_ACTOR], forced=order.forced.strip()[:MAX_FORCED], gpu_memory=used,
        )  # fmt: skip
    except FileExistsError:
        raise
    except OSError:
        alone = runs.numbers(home, run) in ([], [number])
        shutil.rmtree(
            paths.run_dir(home, run) if alone else paths.attempt_dir(home, run, number), ignore_errors=True
        )
        raise


def create(
    home: str,
    spec: wire.LaunchSpec,
    number: int,
    command: launching.Command,
    *,
    lease: bool = False,
    secrets: Optional[Dict[str, str]] = None,
    **more: Any,
) -> Attempt:
    """Write an attempt, its spec as the last thing: with it the attempt is there. Raises OSError.

    `more` is kept in spec.json beside the spec: `placement`, `actor`, `forced`, `gpu_memory` (used before).
    """
    attempt = Attempt(home, spec.run, number)
    files.make_dirs(paths.attempts_dir(home, spec.run))
    files.make_dirs(paths.checkpoints_dir(home, spec.run))
    os.mkdir(attempt.dir, 0o700)
    for name in ("rank.py", launchers.PROCESS_LAUNCHER):
        path = os.path.join(attempt.dir, name)
        if name == "rank.py" or path in command.argv:
            file = pkgutil.get_data(__package__ or "agent", name)
            assert file is not None, "it is part of every build"
            files.write_bytes(path, file)
    secret_file.write(attempt.dir, secrets or {})
    if lease:
        now = {"boot_id": process.boot_id(), "monotonic": time.monotonic()}
        files.write_json(os.path.join(attempt.dir, "prepared.json"), now)
    values = {**wire.to_json(spec), "resolved": command._asdict(), **more}
    files.write_json(os.path.join(attempt.dir, "spec.json"), values)
    os.utime(paths.runs_dir(home))  # tells every Registry
    return attempt


def remove(home: str, run: str, number: int) -> str:
    """Take away an attempt that never ran, and its run when that has no other. The caller has the lock.

    Returns the folder that the caller is to delete, which nobody sees any more. Raises OSError.
    """
    old = paths.staged_dir(home, run, "old")
    shutil.rmtree(old, ignore_errors=True)
    alone = runs.numbers(home, run) == [number]
    secret_file.remove(paths.attempt_dir(home, run, number))
    os.rename(paths.run_dir(home, run) if alone else paths.attempt_dir(home, run, number), old)
    os.utime(paths.runs_dir(home))
    return old


def sweep(home: str) -> None:
    """Delete what preparations and removals left that were killed in between. Blocks on the disk."""
    try:
        names = os.listdir(paths.runs_dir(home))
    except OSError:
        return
    for name in names:
        pid = name.rpartition("-")[2]
        if name.startswith((".new-", ".old-")) and pid.isdigit() and process.start_time(int(pid)) is None:
            shutil.rmtree(os.path.join(paths.runs_dir(home), name), ignore_errors=True)


def add_event(attempt: Attempt, name: str, actor: str, text: str) -> None:
    """Add a line to the attempt's events. Where the disk is full the action goes on and the event is lost."""
    event = {"time": time.time(), "name": name, "actor": actor[:MAX_ACTOR], "text": text}
    try:
        files.append_json_line(os.path.join(attempt.dir, "events.jsonl"), event)
    except OSError:
        pass


def _event(order: Order, command: launching.Command) -> Tuple[str, str, str]:
    """Name, actor and text of the event with which an attempt begins."""
    if order.attempt > 1:
        name, text = "restarted", f"attempt {order.attempt} follows attempt {order.attempt - 1}"
        if order.resume_step is not None:
            text += f", from step {order.resume_step}"
    else:
        name, text = "launched", f"{command.nproc_per_node} ranks with {command.launcher}"
    nodes = () if order.placement is None else order.placement.nodes
    if len(nodes) > 1 and order.placement is not None:
        text += f", node {order.placement.node_rank} of {', '.join(node.name for node in nodes)}"
    if order.note:
        text += f", {order.note[:MAX_FORCED]}"
    return name, order.actor, text


def started(order: Order, command: launching.Command) -> Started:
    """What viewers are told."""
    return Started(
        order.spec.run, order.attempt, command.world_size, command.nproc_per_node, command.python,
        command.argv, command.env, command.cwd, command.torch, command.cuda, command.port,
        tuple(sorted({*order.spec.secret_sources, *order.secrets})),
    )  # fmt: skip


def _unwritable(error: OSError) -> RunError:
    if error.errno in files.NO_SPACE:
        return RunError(
            "no-space", "no space is left on this host for a run", "remove old runs or other files"
        )
    if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
        return RunError("exists", "somebody else has just launched this run here", "choose another id")
    return RunError(
        "not-started", f"cannot write the run's folder: {error.strerror}", f"see {error.filename}"
    )

"""What can be done with runs: launch, stop, restart, wait. The app and the commands both act through here.

Each action is one request to the agent on the run's host. When the connection breaks under a request, the
host may or may not have heard it: every action here can be asked for again, and is, once the host answers.
"""

from __future__ import annotations

import asyncio
import base64
import getpass
import re
import secrets
import shlex
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agent import wire

from .channel import REQUEST_SECONDS
from .code import Archive, trainer_archive
from .errors import EncampError, HostError, RequestRefused, Unreachable
from .session import Session
from .store import RunView

if TYPE_CHECKING:
    from profiles.schema import Profile

T = TypeVar("T")

RECONNECT_SECONDS = 120.0
"""How long an action waits for a lost host to come back before it gives up."""

POLL_SECONDS = 0.05
"""How often a wait looks at the store."""

LAUNCH_SECONDS = 600.0
"""How long the answer to a launch may take: the host tries its Pythons for torch, which may be slow."""

STOP_SECONDS = 3600.0 + 120.0
"""How long the answer to a stop may take: the longest grace, and time for what was killed to go."""

SETTLE_SECONDS = 3.0
"""How long the last samples of a run's ranks may take after its end."""

TAIL_BYTES = 16 * 1024
TAIL_LINES = 30
"""How much of a failed rank's log a message repeats."""

CONSEQUENCES = (-15, 143, -9, 137)
"""Exit codes of ranks that were ended because another one failed."""

ID_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
"""What the random part of a run's id is made of: no two that look alike."""


class RunFailed(EncampError):
    """A run ended although it should have gone on. `tail` are its last words, written to `stream`."""

    def __init__(self, run: str, attempt: int, message: str, hint: str, stream: str, tail: str) -> None:
        super().__init__(message, hint)
        self.run = run
        self.attempt = attempt
        self.stream = stream
        self.tail = tail


class Timeout(EncampError):
    """A run did not reach the state that was waited for in time."""


class NoSuchRun(EncampError):
    """No host that answers knows the run."""

    exit_code = 2


@dataclass(frozen=True)
class LaunchResult:
    """What the host has started, or with `dry_run` would start. `env` is what is set on top of its own."""

    run: str
    attempt: int
    world_size: int
    nproc_per_node: int
    python: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str

    @property
    def command_line(self) -> str:
        """What the host runs, for a shell there."""
        return _shell_line(self.cwd, self.env, self.argv)

    @property
    def by_hand(self) -> str:
        """The same without encamp's shim and folders, which only a launch creates: for trying it by hand."""
        words = list(self.argv)
        for at, word in enumerate(words[:-2]):
            if word.endswith("/rank.py") and words[at + 1] in ("script", "module"):
                words[at : at + 2] = ["-m"] if words[at + 1] == "module" else []
                break
        if "--log-dir" in words:
            at = words.index("--log-dir")
            del words[at : at + 2]
        mine = ("ENCAMP_", "TORCH_FR_DUMP", "TORCH_NCCL_DEBUG_INFO")
        env = {name: value for name, value in self.env.items() if not name.startswith(mine)}
        return _shell_line(self.cwd, env, words)


def actor() -> str:
    """Who acts, for the run's record: `user@machine`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # no entry in passwd: common in containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:200]


def new_run_id(name: str) -> str:
    """An id for a run called `name`: the name as far as an id may have it, and five random characters."""
    slug = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:60].rstrip("-._") or "run"
    return f"{slug}-{''.join(secrets.choice(ID_LETTERS) for _ in range(5))}"


def spec_from_profile(
    profile: Profile, run_id: str, *, name: str | None = None, extra: Collection[str] = ()
) -> wire.LaunchSpec:
    """What to ask a host for. `extra` are more arguments of the command; `name` overrides the profile's."""
    from profiles.command import command

    what = command(profile)
    return wire.LaunchSpec(
        run=run_id,
        name=name or profile.name,
        profile=profile.name,
        strategy=profile.run.strategy,
        target_kind=what.kind,
        target=what.target,
        args=(*what.args, *extra),
        cwd=profile.run.cwd,
        nproc_per_node=profile.run.nproc_per_node,
        python=profile.run.python,
        env=dict(profile.env),
        code=(trainer_archive().ref,) if what.kind == "task" else (),
        stop_grace_seconds=profile.run.stop_grace_seconds,
    )


async def launch(
    session: Session, spec: wire.LaunchSpec, actor: str, *, dry_run: bool = False
) -> LaunchResult:
    """Start the run, or with `dry_run` find out what would start. Returns once the supervisor is at work.

    Code that the spec refers to is uploaded first, unless the host has it. Raises RequestRefused, HostError.
    """
    for ref in spec.code:
        archive = trainer_archive()
        if ref != archive.ref:
            raise EncampError(f"The code {ref.name} of this launch is not here.", "Launch from its profile.")
        await upload_code(session, archive)
    params = {"spec": wire.to_json(spec), "actor": actor, "dry_run": dry_run}
    try:
        return _launched(await session.request("launch", params, timeout=LAUNCH_SECONDS))
    except Unreachable:
        return await _launch_again(session, spec, params)


async def _launch_again(session: Session, spec: wire.LaunchSpec, params: dict[str, Any]) -> LaunchResult:
    """Ask again after a break. That the run exists means that the host had heard us the first time."""
    try:
        return _launched(await request(session, "launch", params, timeout=LAUNCH_SECONDS))
    except RequestRefused as error:
        if error.code != "exists":
            raise
    complaint = f"The host knows {spec.run} but does not tell of it"
    run = await until(session, lambda: session.view.runs.get(spec.run), RECONNECT_SECONDS, complaint)
    return _as_launched(run.info)


async def stop(session: Session, run: str, actor: str, grace_seconds: float | None = None) -> dict[str, Any]:
    """Stop a run: `{"state", "reaped": [pid]}` once all its processes are gone. It may have ended already.

    `grace_seconds` is how long the ranks may take to end by themselves; None is what the profile says.
    Raises RequestRefused, Unreachable.
    """
    params: dict[str, Any] = {"run": run, "actor": actor}
    if grace_seconds is not None:
        params["grace_seconds"] = grace_seconds
    reply = await request(session, "stop", params, timeout=STOP_SECONDS)
    reaped = reply.get("reaped")
    return {
        "state": str(reply.get("state", "stopped")),
        "reaped": [pid for pid in reaped if isinstance(pid, int)] if isinstance(reaped, list) else [],
    }


async def restart(session: Session, run: str, actor: str) -> LaunchResult:
    """Stop the run if it lives, and start its next attempt. Raises RequestRefused, Unreachable."""
    known = session.view.runs.get(run)
    before = known.info.attempt if known else 0
    params = {"run": run, "actor": actor}
    try:
        return _launched(await session.request("restart", params, timeout=STOP_SECONDS))
    except Unreachable:
        await session.connected(RECONNECT_SECONDS)
    known = session.view.runs.get(run)
    if known is not None and known.info.attempt > before:
        return _as_launched(known.info)  # the host had heard us
    return _launched(await request(session, "restart", params, timeout=STOP_SECONDS))


async def started(session: Session, run: str, attempt: int) -> RunView:
    """Wait until all ranks of an attempt have started, and return the run.

    Raises RunFailed when it ended before that in any other way than by finishing.
    """
    view = await wait(session, run, ("running", "stalled", *wire.END_STATES), attempt=attempt)
    if view.info.state in ("failed", "stopped"):
        raise await failure(session, view)
    return view


async def wait(
    session: Session, run: str, states: Collection[str], *, timeout: float | None = None, attempt: int = 0
) -> RunView:
    """Wait until the run is in one of `states`, or has ended in another way, and return it.

    The attempt that counts is the newest, and not before `attempt`. Reconnects are waited through. Raises
    Timeout after `timeout` seconds, NoSuchRun when the host has forgotten the run, HostError when the
    connection needs a person's help.
    """

    def reached() -> RunView | None:
        host = session.view
        view = host.runs.get(run)
        if view is None:
            if host.ready:
                raise NoSuchRun(f"There is no run {run} on {host.name} any more.", "See: encamp status")
            return None
        if view.info.attempt < attempt:
            return None
        state = host.run_state(view)
        return view if state in states or state in wire.END_STATES else None

    return await until(session, reached, timeout, f"Run {run} did not get there")


async def settled(session: Session, view: RunView) -> RunView:
    """Wait for the last word on the ranks of a run that has ended: it comes right after its end."""

    def over() -> bool | None:
        ranks = view.ranks.values()
        return all(rank.sample.state in ("exited", "lost") for rank in ranks) or None

    try:
        await until(session, over, SETTLE_SECONDS, "")
    except Timeout:
        pass  # then what is known is what there is
    return view


async def until(
    session: Session, condition: Callable[[], T | None], timeout: float | None, complaint: str
) -> T:
    """Look at the store until `condition` returns something. Raises Timeout, HostError."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        found = condition()
        if found is not None:
            return found
        session.check()
        if deadline is not None and time.monotonic() >= deadline:
            raise Timeout(f"{complaint} within {timeout:g} s.", "Nothing was changed: it goes on as before.")
        await asyncio.sleep(POLL_SECONDS)


async def request(
    session: Session, method: str, params: dict[str, Any], timeout: float = REQUEST_SECONDS
) -> dict[str, Any]:
    """`session.request`, asked again after each reconnect: only for what may be asked twice.

    Raises RequestRefused, and HostError when the host does not come back within RECONNECT_SECONDS.
    """
    while True:
        try:
            return await session.request(method, params, timeout=timeout)
        except Unreachable:
            await session.connected(RECONNECT_SECONDS)


async def upload_code(session: Session, archive: Archive) -> None:
    """Put an archive on the host unless it is there. Goes on where a broken upload stopped."""
    ref = archive.ref
    if (await request(session, "blob_has", {"sha256": ref.sha256})).get("present") is True:
        return
    params = {"sha256": ref.sha256, "name": ref.name, "size": len(archive.data)}
    offset = 0
    while True:
        piece = base64.b64encode(archive.data[offset : offset + wire.MAX_CHUNK]).decode("ascii")
        reply = await request(session, "blob_put", {**params, "offset": offset, "data": piece})
        if reply.get("present") is True:
            return
        received = reply.get("received")
        if not isinstance(received, int) or not 0 <= received < len(archive.data):
            raise EncampError(f"{session.host.name} does not take the code {ref.name}.", "Look at its disk.")
        offset = received


async def failure(session: Session, view: RunView) -> RunFailed:
    """Why a run has ended, with the last words of the rank that is to blame as far as that can be told."""
    await settled(session, view)
    info = view.info
    stream = _culprit(view)
    try:
        tail = await _tail(session, info.run, info.attempt, stream)
        if not tail.strip() and stream != "launcher":
            stream = "launcher"
            tail = await _tail(session, info.run, info.attempt, stream)
    except (RequestRefused, HostError):
        tail = ""
    reason = info.reason or (
        f"exit code {info.exit_code}" if info.exit_code is not None else "no reason known"
    )
    return RunFailed(
        info.run,
        info.attempt,
        f"Run {info.run} {info.state}: {reason}",
        f"All of it: encamp logs {info.run}"
        + (f" --rank {stream[4:]}" if stream != "launcher" else " --launcher"),
        stream,
        tail,
    )


def _culprit(view: RunView) -> str:
    """The stream to look into first: of a rank that failed by itself, not of one that was ended for it."""
    failed = [rank.sample for rank in view.ranks.values() if rank.sample.exit_code not in (None, 0)]
    failed.sort(key=lambda rank: (rank.exit_code in CONSEQUENCES, rank.rank))
    return f"rank{failed[0].rank}" if failed else "launcher"


async def _tail(session: Session, run: str, attempt: int, stream: str) -> str:
    part = await session.read_log(run, attempt, stream, -TAIL_BYTES, TAIL_BYTES)
    return "\n".join(part.data.decode("utf-8", "replace").splitlines()[-TAIL_LINES:])


def _shell_line(cwd: str, env: Mapping[str, str], argv: Sequence[str]) -> str:
    variables = [f"{name}={value}" for name, value in sorted(env.items())]
    words = ["env", *variables, *argv] if variables else argv
    return f"cd {shlex.quote(cwd)} && {shlex.join(words)}"


def _launched(reply: dict[str, Any]) -> LaunchResult:
    try:
        return wire.from_json(LaunchResult, reply, "launched")
    except wire.WireError as error:
        raise EncampError(f"The agent's answer makes no sense: {error}.") from error


def _as_launched(info: wire.Run) -> LaunchResult:
    return LaunchResult(
        info.run, info.attempt, info.world_size, info.nproc_per_node, info.python, info.command, {}, info.cwd
    )

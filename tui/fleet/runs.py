"""What can be done with runs: launch, stop, restart. The app and the commands both act through here.

Each action is one request to the agent on the run's host. When the connection breaks under a request, the
host may or may not have heard it: every action here can be asked for again, and is, once the host answers.
"""

from __future__ import annotations

import base64
import getpass
import posixpath
import re
import secrets
import shlex
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agent import wire

from .channel import REQUEST_SECONDS
from .code import Archive, trainer_archive
from .errors import EncampError, RequestRefused, Unreachable
from .run_watch import until
from .session import Session

if TYPE_CHECKING:
    from profiles.schema import Profile

T = TypeVar("T")

RECONNECT_SECONDS = 120.0
"""How long an action waits for a lost host to come back before it gives up."""

LAUNCH_SECONDS = 600.0
"""How long the answer to a launch may take: the host tries its Pythons for torch, which may be slow."""

STOP_SECONDS = 3600.0 + 120.0
"""How long the answer to a stop may take: the longest grace, and time for what was killed to go."""

ID_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
"""What the random part of a run's id is made of: no two that look alike."""


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

    def by_hand(self, project: str = "") -> str:
        """The same without encamp's shim and folders, which only a launch creates: for trying it by hand.

        `project` is the hash of a project that was sent. It is copied: other runs take theirs from there.
        """
        words = _without_launcher(self.argv)
        for at, word in enumerate(words[:-2]):
            if word.endswith("/rank.py") and words[at + 1] in ("script", "module"):
                words[at : at + 2] = ["-m"] if words[at + 1] == "module" else []
                break
        if "--log-dir" in words:
            at = words.index("--log-dir")
            del words[at : at + 2]
        mine = ("ENCAMP_", "TORCH_FR_DUMP", "TORCH_NCCL_DEBUG_INFO")
        env = {name: value for name, value in self.env.items() if not name.startswith(mine)}
        sent = posixpath.join(self.env.get("ENCAMP_RUN_DIR", ""), "code")
        if not project or not f"{self.cwd}/".startswith(f"{sent}/"):
            return _shell_line(self.cwd, env, words)
        copy = f"/tmp/{self.run}"
        stored = posixpath.join(self.env.get("ENCAMP_HOME", ""), "code", project)
        run_there = _shell_line(copy + self.cwd[len(sent) :], env, words)
        return f"{shlex.join(['cp', '-r', stored, copy])} && {run_there}"


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
    setup = profile.env_setup
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
        env_setup=None if setup is None else wire.EnvSetup(setup.packages, setup.pip_args),
        secret_sources=dict(profile.secrets),
        stall_seconds=profile.run.stall_seconds,
    )


async def launch(
    session: Session,
    spec: wire.LaunchSpec,
    actor: str,
    *,
    dry_run: bool = False,
    secrets: Mapping[str, str] | None = None,
    forced: str = "",
) -> LaunchResult:
    """Start the run, or with `dry_run` find out what would start. Returns once the supervisor is at work.

    `secrets` are the values of those that the spec names, `forced` why a blocker is ignored. The trainer's
    code is uploaded first, unless the host has it. Raises RequestRefused, HostError.
    """
    await upload_trainer(session, spec)
    params = {"spec": wire.to_json(spec), "actor": actor, "dry_run": dry_run, **_extras(secrets, forced)}
    try:
        return read_answer(LaunchResult, await session.request("launch", params, timeout=LAUNCH_SECONDS))
    except Unreachable:
        return await _launch_again(session, spec, params)


async def _launch_again(session: Session, spec: wire.LaunchSpec, params: dict[str, Any]) -> LaunchResult:
    """Ask again after a break. That the run exists means that the host had heard us the first time."""
    try:
        return read_answer(LaunchResult, await request(session, "launch", params, timeout=LAUNCH_SECONDS))
    except RequestRefused as error:
        if error.code != "exists":
            raise
    complaint = f"The host knows {spec.run} but does not tell of it"
    run = await until(session, lambda: session.view.runs.get(spec.run), RECONNECT_SECONDS, complaint)
    return _as_launched(run.info)


async def stop(
    session: Session,
    run: str,
    actor: str,
    grace_seconds: float | None = None,
    attempt: int | None = None,
) -> dict[str, Any]:
    """Stop a run: `{"state", "reaped": [pid]}` once all its processes are gone. It may have ended already.

    `grace_seconds` is how long the ranks may take to end by themselves; None is what the profile says. With
    `attempt` it is refused (`superseded`) when a later one has begun.
    Raises RequestRefused, Unreachable.
    """
    params: dict[str, Any] = {"run": run, "actor": actor}
    if grace_seconds is not None:
        params["grace_seconds"] = grace_seconds
    if attempt is not None:
        params["attempt"] = attempt
    reply = await request(session, "stop", params, timeout=STOP_SECONDS)
    reaped = reply.get("reaped")
    return {
        "state": str(reply.get("state", "stopped")),
        "reaped": [pid for pid in reaped if isinstance(pid, int)] if isinstance(reaped, list) else [],
    }


async def restart(
    session: Session,
    run: str,
    actor: str,
    *,
    secrets: Mapping[str, str] | None = None,
    forced: str = "",
    resume_step: int | None = None,
    attempt: int | None = None,
) -> LaunchResult:
    """Stop the run if it lives, and start its next attempt. Raises RequestRefused, Unreachable.

    `resume_step` is the checkpoint to go back to; None is the newest, 0 none. With `attempt` it is refused
    (`superseded`) when a later one has begun: somebody else was quicker.
    """
    known = session.view.runs.get(run)
    before = known.info.attempt if known else 0
    params = {"run": run, "actor": actor, **_extras(secrets, forced)}
    if resume_step is not None:
        params["resume_step"] = resume_step
    if attempt is not None:
        params["attempt"] = attempt
    try:
        return read_answer(LaunchResult, await session.request("restart", params, timeout=STOP_SECONDS))
    except Unreachable:
        await session.connected(RECONNECT_SECONDS)
    known = session.view.runs.get(run)
    if known is not None and known.info.attempt > before:
        return _as_launched(known.info)  # the host had heard us
    return read_answer(LaunchResult, await request(session, "restart", params, timeout=STOP_SECONDS))


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


async def upload_trainer(session: Session, spec: wire.LaunchSpec) -> None:
    """Put the trainer on the host if the spec refers to it. Raises EncampError when it is another one."""
    for ref in spec.code:
        archive = trainer_archive()
        if ref != archive.ref:
            raise EncampError(f"The code {ref.name} of this launch is not here.", "Launch from its profile.")
        await upload_code(session, archive)


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


def _without_launcher(argv: Sequence[str]) -> list[str]:
    """`argv` without the agent's own launcher: as Horovod's starts it, or as one process of TensorFlow."""
    words = list(argv)
    if len(words) < 4 or not words[2].endswith("/process_launcher.py"):
        return words
    python, program = words[0], words[words.index("--") + 1 :]
    if words[3] != "horovod":
        return [python, *program]
    ranks = words[words.index("--nproc") + 1]
    return [python, "-m", "horovod.runner.launch", "--gloo", "-np", ranks, python, *program]


def _shell_line(cwd: str, env: Mapping[str, str], argv: Sequence[str]) -> str:
    variables = [f"{name}={value}" for name, value in sorted(env.items())]
    words = ["env", *variables, *argv] if variables else argv
    return f"cd {shlex.quote(cwd)} && {shlex.join(words)}"


def read_answer(kind: type[T], reply: dict[str, Any]) -> T:
    """What the agent answered, as the dataclass `kind`. Raises EncampError when it makes no sense."""
    try:
        return wire.from_json(kind, reply, "answer")
    except wire.WireError as error:
        raise EncampError(f"The agent's answer makes no sense: {error}.") from error


def _extras(secrets: Mapping[str, str] | None, forced: str) -> dict[str, Any]:
    """Parameters that are sent only when there is something in them."""
    return {**({"secrets": dict(secrets)} if secrets else {}), **({"forced": forced} if forced else {})}


def _as_launched(info: wire.Run) -> LaunchResult:
    return LaunchResult(
        info.run, info.attempt, info.world_size, info.nproc_per_node, info.python, info.command, {}, info.cwd
    )

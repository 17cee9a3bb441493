"""The requests of viewers: one function a method, from checked parameters to the result's object.

A function raises RunError or BlobError to refuse, and WireError for parameters that are not as they must be.
Whatever may take long runs in a thread or waits by looking again, so that telemetry goes on.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import os
import time
from typing import Any, Awaitable, Callable, Dict, List, Optional, Tuple, Type

from . import actions, blobs, browse, control, files, launch, logs, paths, probe, progress, runs, watch, wire
from .actions import in_thread
from .attempt import Attempt
from .errors import RunError
from .viewer import Viewer

Result = Dict[str, Any]

MAX_ATTEMPTS = 200
"""Attempts that `run` lists: the newest, and of these as many as fit into a line."""

MAX_EVENTS = 500
"""Events that `events` lists, likewise."""

MAX_NEEDLE = 1024
"""Bytes of a text to search for."""

RESULT_BYTES = wire.MAX_LINE - 4096
"""Bytes of JSON that a result may take."""


class Services:
    """What the functions work with. `retire` ends the daemon."""

    def __init__(
        self, home: str, watcher: watch.Watcher, doer: actions.Actions, retire: Callable[[], None]
    ) -> None:
        self.home = home
        self.watcher = watcher
        self.actions = doer
        self.retire = retire
        self.blobs = blobs.BlobStore(paths.code_dir(home))
        self.uploading = asyncio.Lock()
        self.hashing = asyncio.Lock()


async def answer(services: Services, viewer: Viewer, request: wire.Request) -> wire.Message:
    """The Reply or Failure to one request."""
    found = METHODS.get(request.method)
    if found is None:
        return wire.Failure(
            request.id, "unknown-method", f"this agent knows no {request.method[:80]!r}", "update encamp"
        )
    parameters, function = found
    try:
        checked = wire.from_json(parameters, request.params, request.method)
        return wire.Reply(request.id, await function(services, viewer, checked))
    except RunError as error:
        return wire.Failure(request.id, error.code, error.message, error.hint)
    except blobs.BlobError as error:
        return wire.Failure(request.id, error.code, str(error))
    except wire.WireError as error:
        return wire.Failure(request.id, "bad-request", str(error))
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return wire.Failure(request.id, "io", f"the host refused it: {error.strerror}{where}")


# --- parameters --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Nothing:
    """No parameters."""


@dataclasses.dataclass(frozen=True)
class OneRun:
    """A run."""

    run: str


@dataclasses.dataclass(frozen=True)
class Launch:
    """What to launch; with `dry_run`, only say what that would be."""

    spec: wire.LaunchSpec
    actor: str
    dry_run: bool = False


@dataclasses.dataclass(frozen=True)
class Restart:
    """Which run, and who wants it."""

    run: str
    actor: str


@dataclasses.dataclass(frozen=True)
class Stop:
    """Without `grace_seconds`, what the spec says counts."""

    run: str
    actor: str
    grace_seconds: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class Stream:
    """One log of one attempt."""

    run: str
    attempt: int
    stream: str


@dataclasses.dataclass(frozen=True)
class LogRead(Stream):
    """A negative offset counts from the end."""

    offset: int
    length: int


@dataclasses.dataclass(frozen=True)
class LogFollow(Stream):
    """A negative offset counts from the end."""

    offset: int


@dataclasses.dataclass(frozen=True)
class LogSearch(Stream):
    """See `logs.search`."""

    text: str
    offset: int
    backward: bool = False
    ignore_case: bool = False


@dataclasses.dataclass(frozen=True)
class ProgressOf:
    """At most `limit` records of one rank."""

    run: str
    attempt: int
    rank: int
    limit: int


@dataclasses.dataclass(frozen=True)
class FileList(OneRun):
    """A folder or file in the run's folder."""

    path: str
    start: int = 0


@dataclasses.dataclass(frozen=True)
class FileRead(OneRun):
    """A piece of a file there."""

    path: str
    offset: int
    length: int


@dataclasses.dataclass(frozen=True)
class FileHash(OneRun):
    """The beginning of a file there."""

    path: str
    length: int


@dataclasses.dataclass(frozen=True)
class Blob:
    """An archive."""

    sha256: str


@dataclasses.dataclass(frozen=True)
class BlobPut:
    """A piece of an archive; `data` is base64."""

    sha256: str
    name: str
    size: int
    offset: int
    data: str


# --- the agent ---------------------------------------------------------------------------------------------


async def ping(services: Services, viewer: Viewer, params: Nothing) -> Result:
    """Whether somebody is there, and the host's clock."""
    del services, viewer, params
    return {"time": time.time()}


async def retire(services: Services, viewer: Viewer, params: Nothing) -> Result:
    """Make room for another daemon; runs go on."""
    del viewer, params
    services.retire()
    return {}


async def probe_host(services: Services, viewer: Viewer, params: Nothing) -> Result:
    """The Pythons, GPUs and cores that a launch could use."""
    del viewer, params
    found = await in_thread(probe.interpreters, services.home)
    status = await services.actions.gpu_status()
    return {
        "interpreters": [interpreter._asdict() for interpreter in found],
        "gpus": len(status.gpus),
        "cores": launch.usable_cores(),
    }


# --- runs --------------------------------------------------------------------------------------------------


async def launch_run(services: Services, viewer: Viewer, params: Launch) -> Result:
    """Start a run; answers when its launcher has been started."""
    del viewer
    return _started(await services.actions.launch(params.spec, params.actor, params.dry_run))


async def restart_run(services: Services, viewer: Viewer, params: Restart) -> Result:
    """Stop the current attempt if it lives, wait until it is gone, start the next one."""
    del viewer
    return _started(await services.actions.restart(params.run, params.actor))


async def stop_run(services: Services, viewer: Viewer, params: Stop) -> Result:
    """Stop the current attempt; answers when everything of it is gone."""
    del viewer
    attempt = await services.actions.stop(params.run, params.actor, params.grace_seconds)
    return {"state": attempt.condition().state, "reaped": attempt.reaped()}


def _started(started: control.Started) -> Result:
    """What was started; arguments and variables that do not fit into a line are left out."""
    result = dict(started._asdict())
    for name in ("env", "argv"):
        if len(json.dumps(result)) > RESULT_BYTES:
            result[name] = type(result[name])()
    return result


async def describe_run(services: Services, viewer: Viewer, params: OneRun) -> Result:
    """The newest attempts of a run, oldest first."""
    del viewer
    return {"attempts": await in_thread(_attempts, services, params.run)}


def _attempts(services: Services, run: str) -> List[Result]:
    runs.current(services.home, run)
    found = []
    for number in runs.numbers(services.home, run)[-MAX_ATTEMPTS:]:
        attempt = Attempt(services.home, run, number)
        condition = attempt.condition()
        found.append(
            {
                "attempt": number,
                "state": condition.state,
                "started": condition.started,
                "ended": condition.ended,
                "exit_code": condition.exit_code,
                "reason": condition.reason,
                "streams": attempt.streams(),
            }
        )
    return _newest_that_fit(found)


async def events(services: Services, viewer: Viewer, params: OneRun) -> Result:
    """The newest events of all attempts of a run, oldest first."""
    del viewer
    return {"events": await in_thread(_events, services, params.run)}


def _events(services: Services, run: str) -> List[Result]:
    runs.current(services.home, run)
    found: List[wire.Event] = []
    for number in reversed(runs.numbers(services.home, run)):
        path = os.path.join(paths.attempt_dir(services.home, run, number), "events.jsonl")
        found[:0] = watch.parse_events(files.read_json_lines(path)[0], run, number)
        if len(found) >= MAX_EVENTS:
            break
    return _newest_that_fit([wire.to_json(event) for event in found[-MAX_EVENTS:]])


def _newest_that_fit(entries: List[Result]) -> List[Result]:
    """The last of `entries` that fit into a line together."""
    left = RESULT_BYTES
    for number, entry in enumerate(reversed(entries)):
        left -= len(json.dumps(entry)) + 2
        if left < 0:
            return entries[len(entries) - number :]
    return entries


async def progress_of(services: Services, viewer: Viewer, params: ProgressOf) -> Result:
    """The records of a rank's progress file, evenly thinned, the newest among them."""
    del viewer
    attempt = _attempt(services, params.run, params.attempt)
    path = os.path.join(attempt.dir, f"rank{max(0, params.rank)}", "progress.jsonl")
    limit = max(1, min(1000, params.limit))
    return {"records": await in_thread(progress.history, path, limit)}


# --- logs --------------------------------------------------------------------------------------------------


async def log_read(services: Services, viewer: Viewer, params: LogRead) -> Result:
    """A piece of a log. `ended` is looked at before the file, so it holds for the `size` that is told."""
    del viewer
    path, attempt = _stream(services, params)
    ended = attempt.condition().over
    part = logs.read_range(path, params.offset, max(0, params.length))
    data = base64.b64encode(part.data).decode("ascii")
    return {"offset": part.offset, "data": data, "size": part.size, "ended": ended}


async def log_follow(services: Services, viewer: Viewer, params: LogFollow) -> Result:
    """Send a log from an offset on, and then what is added."""
    path, attempt = _stream(services, params)
    ended = attempt.condition().over
    size = logs.size_of(path)
    offset = max(0, size + params.offset) if params.offset < 0 else params.offset
    if not viewer.follow(logs.Follower(path, params.run, params.attempt, params.stream, offset)):
        raise RunError("busy", "this viewer follows too many logs already", "unfollow some")
    return {"size": size, "ended": ended}


async def log_unfollow(services: Services, viewer: Viewer, params: Stream) -> Result:
    """Stop sending a log."""
    del services
    viewer.unfollow((params.run, params.attempt, params.stream))
    return {}


async def log_search(services: Services, viewer: Viewer, params: LogSearch) -> Result:
    """Look for a text in a log."""
    del viewer
    path, _ = _stream(services, params)
    needle = params.text.encode("utf-8", "replace")
    if not 0 < len(needle) <= MAX_NEEDLE:
        raise wire.WireError(f"text has {len(needle)} bytes; 1 to {MAX_NEEDLE} are allowed")
    found = await in_thread(logs.search, path, needle, params.offset, params.backward, params.ignore_case)
    return dict(found._asdict())


def _attempt(services: Services, run: str, number: int) -> Attempt:
    attempt = services.watcher.attempt(run, number) if wire.RUN_ID.match(run) else None
    if attempt is None or not os.path.isdir(attempt.dir):
        raise RunError("no-run", f"there is no attempt {number} of {run[:80]!r} on this host")
    return attempt


def _stream(services: Services, params: Stream) -> Tuple[str, Attempt]:
    attempt = _attempt(services, params.run, params.attempt)
    path = os.path.join(attempt.dir, f"{params.stream}.log")
    possible = {"launcher", *(f"rank{rank}" for rank in range(attempt.nproc()))}
    if params.stream not in possible and not (wire.STREAM.match(params.stream) and os.path.exists(path)):
        raise RunError(
            "no-stream", f"{params.run} has no log {params.stream[:40]!r} in attempt {params.attempt}"
        )
    return path, attempt


# --- files of runs -----------------------------------------------------------------------------------------


async def file_list(services: Services, viewer: Viewer, params: FileList) -> Result:
    """What a folder of a run holds."""
    del viewer
    found: Result = await in_thread(browse.entries, _run_dir(services, params), params.path, params.start)
    return found


async def file_read(services: Services, viewer: Viewer, params: FileRead) -> Result:
    """A piece of a file."""
    del viewer
    length = min(params.length, wire.MAX_CHUNK)
    data = await in_thread(browse.read, _run_dir(services, params), params.path, params.offset, length)
    return {"data": base64.b64encode(data).decode("ascii")}


async def file_hash(services: Services, viewer: Viewer, params: FileHash) -> Result:
    """The SHA-256 of the beginning of a file; one at a time, as it may take minutes."""
    del viewer
    async with services.hashing:
        found: Result = await in_thread(browse.sha256, _run_dir(services, params), params.path, params.length)
    return found


def _run_dir(services: Services, params: OneRun) -> str:
    runs.current(services.home, params.run)
    return paths.run_dir(services.home, params.run)


# --- code --------------------------------------------------------------------------------------------------


async def blob_has(services: Services, viewer: Viewer, params: Blob) -> Result:
    """Whether an archive is here."""
    del viewer
    return {"present": services.blobs.present(params.sha256)}


async def blob_put(services: Services, viewer: Viewer, params: BlobPut) -> Result:
    """Take a piece of an archive; the answer says where to go on. Two viewers may send the same one."""
    del viewer
    data = wire.payload(params.data)
    async with services.uploading:
        received, present = await in_thread(
            services.blobs.put, params.sha256, params.size, params.offset, data
        )
    return {"received": received, "present": present}


METHODS: Dict[str, Tuple[Type[Any], Callable[[Services, Viewer, Any], Awaitable[Result]]]] = {
    "ping": (Nothing, ping),
    "retire": (Nothing, retire),
    "probe": (Nothing, probe_host),
    "launch": (Launch, launch_run),
    "restart": (Restart, restart_run),
    "stop": (Stop, stop_run),
    "run": (OneRun, describe_run),
    "events": (OneRun, events),
    "progress": (ProgressOf, progress_of),
    "log_read": (LogRead, log_read),
    "log_follow": (LogFollow, log_follow),
    "log_unfollow": (Stream, log_unfollow),
    "log_search": (LogSearch, log_search),
    "file_list": (FileList, file_list),
    "file_read": (FileRead, file_read),
    "file_hash": (FileHash, file_hash),
    "blob_has": (Blob, blob_has),
    "blob_put": (BlobPut, blob_put),
}

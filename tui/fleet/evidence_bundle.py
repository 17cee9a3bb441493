"""All that is known about an attempt in one archive: for a bug report, or for after a restart.

Written at once and only when whole. A host that is away, or a file that cannot be had, is named in it: an
archive with gaps is worth more than none. Values of secrets are taken out of everything, as far as they can
be known here: those that the run was launched with from this machine, and variables that sound like one.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.diagnosis.evidence import Evidence, Rank
from agent.version import VERSION

from . import attempt_files, diagnosis, launch_secrets
from .diagnosis import Part, Report
from .errors import EncampError, UsageError
from .host_files import HostFile, HostFiles
from .parallel import everywhere
from .session import Session

LOG_BYTES = 256 * 1024
"""The end of each log that is taken along."""

FILE_BYTES = 1024 * 1024
"""Of any other file its end, in the case that it is larger."""

PROGRESS_BYTES = 128 * 1024

MAX_FILES, MAX_BYTES = 4000, 256 * 1024 * 1024
"""Of one host."""

TAKEN = re.compile(
    r"(events\.jsonl|(spec|supervisor|launcher|exit|stop|telemetry|last-look|stall-\d{1,3})\.json"
    r"|(launcher|rank\d{1,5})\.log"
    r"|rank\d{1,5}/((rank|exit|error)\.json|stacks\.txt|progress\.jsonl))\Z"
)
"""Files of an attempt's folder that are taken along: `secrets.json` is not, nor is what ranks write."""

SECRET_NAME = re.compile(r"key|token(?!iz)|secret|passw|credential|auth|cookie|dsn|private", re.I)
"""Names of variables whose values are taken out. They are launch settings: one too many does no harm."""

NUMBER = re.compile(r"[\d.,e_+-]*\Z")
"""Such as that of `--max-tokens`: it is no secret, and stands in every log."""

MIN_SECRET = 6
"""Characters of a value that is looked for everywhere: shorter ones are in every log by chance."""

IN_URL = re.compile(rb"(://(?:[^/\s:@\"']{0,32}:)?)[^/\s@\"']{1,500}@")
"""What stands before the host in an address: a password, or a token in the place of the user's name."""

TOKEN = re.compile(
    rb"(?<![A-Za-z0-9])(?:(hf_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-)[A-Za-z0-9_-]{16,}"
    rb"|(bearer[ \t]+)[A-Za-z0-9._~+/=-]{8,})",
    re.I,
)
"""What can be told to be a secret by its look: tokens of well-known services, and those of HTTP headers."""

REMOVED = "(removed)"


@dataclass(frozen=True, slots=True)
class Written:
    """The archive, and what is not in it, in words."""

    file: Path
    bytes: int
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Fetched:
    """What came from one host: path in the attempt's folder -> bytes."""

    files: dict[str, bytes]
    missing: list[str]


def check_target(target: Path, *, force: bool) -> None:
    """Raise UsageError when the archive cannot be written there."""
    if target.is_dir():
        raise UsageError(f"{target} is a folder.", f"Name a file: {target / 'evidence.tar.gz'}")
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent}.", "Create it, or name another place.")
    if target.exists() and not force:
        raise UsageError(f"{target} exists already.", "Name another file, or overwrite it with --force.")


async def write(report: Report, target: Path, *, force: bool = False) -> Written:
    """Fetch what is not known yet and write the archive. Raises UsageError, EncampError when it cannot be."""
    check_target(target, force=force)
    asked = {part.member.session.name: part for part in report.parts if part.member.session is not None}
    sessions = [part.member.session for part in asked.values() if part.member.session is not None]
    live = [session for session in sessions if session.live]
    folder = f"attempts/{report.attempt}"

    async def fetch(session: Session) -> _Fetched:
        return await _fetch(session, report.run, folder)

    outcome = await everywhere(live, fetch)
    missing = list(report.notes)
    for name, error in outcome.failed.items():
        missing.append(f"the files on {name}: {error.message}")
    fetched = {asked[name].member.name: found for name, found in outcome.done.items()}
    for name, found in fetched.items():
        missing += [f"{path} on {name}" for path in found.missing]
    for part in report.parts:
        if part.member.name not in fetched and part.member.name not in outcome.failed:
            missing.append(f"the files on {part.member.name}")
    missing = list(dict.fromkeys(missing))
    contents = _contents(report, fetched, missing)
    return Written(target, _save(contents, report, target, force=force), tuple(missing))


async def _fetch(session: Session, run: str, folder: str) -> _Fetched:
    """The files of an attempt that are taken along, of large ones the ends. Raises EncampError."""
    host = HostFiles(session, run)
    names: list[HostFile] = []
    is_folder, entries = await host.entries(folder)
    for name, kind, size in entries if is_folder else ():
        if kind == "file" and TAKEN.match(name):
            names.append(HostFile(name, (), size))
        elif kind == "folder" and re.match(r"rank\d{1,5}\Z", name):
            _, inner = await host.entries(f"{folder}/{name}")
            for leaf, leaf_kind, leaf_size in inner:
                if leaf_kind == "file" and TAKEN.match(f"{name}/{leaf}"):
                    names.append(HostFile(f"{name}/{leaf}", (), leaf_size))
    found = _Fetched({}, [])
    room = MAX_BYTES
    for file in names[:MAX_FILES]:
        limit = LOG_BYTES if file.path.endswith(".log") else FILE_BYTES
        limit = PROGRESS_BYTES if file.path.endswith("progress.jsonl") else limit
        if room < limit:
            found.missing.append(f"{file.path} (all together is too much)")
            continue
        try:
            start = max(0, file.size - limit)
            data = await attempt_files.read(host, f"{folder}/{file.path}", start, limit)
            room -= len(data)
            # A piece of a line may hold a piece of a secret, which nothing would recognise.
            found.files[file.path] = data[data.find(b"\n") + 1 :] if start else data
        except EncampError as error:
            found.missing.append(f"{file.path} ({error.message})")
    found.missing.extend(file.path for file in names[MAX_FILES:])
    return found


# --- what is in it ---------------------------------------------------------------------------------------


def _contents(report: Report, fetched: Mapping[str, _Fetched], missing: Iterable[str]) -> dict[str, bytes]:
    """Path in the archive -> bytes, without secrets."""
    contents = {"diagnosis.json": _json(diagnosis.document(report))}
    for part in report.parts:
        host = part.member.name
        if part.evidence is not None:
            told = {"evidence": dataclasses.asdict(part.evidence)}
            told["alarm"] = {} if part.alarm is None else dataclasses.asdict(part.alarm)
            contents[f"{host}/evidence.json"] = _json(told)
            contents |= _stacks(host, part.evidence)
            reports = [one.nccl_ras for one in part.evidence.hosts if one.nccl_ras]
            if reports:
                contents[f"{host}/nccl-ras.txt"] = "\n".join([*reports, ""]).encode()
        contents[f"{host}/host.json"] = _json(_host(part))
        for path, data in fetched[host].files.items() if host in fetched else ():
            contents[f"{host}/{path}"] = data
    contents["README.txt"] = _readme(report, missing)
    values = _secret_values(report, contents)
    contents = {path: _without(data, values) for path, data in contents.items()}
    contents |= {path: _spec(data) for path, data in contents.items() if path.endswith("/spec.json")}
    return contents


def _stacks(host: str, evidence: Evidence) -> dict[str, bytes]:
    return {
        f"{host}/stacks/rank{rank.rank}.txt": _stack_text(rank).encode()
        for rank in evidence.ranks
        if rank.threads
    }


def _stack_text(rank: Rank) -> str:
    blocks = []
    for thread in rank.threads:
        kind = "main thread" if thread.main else f"thread {thread.name}".rstrip()
        lines = [f"rank {rank.rank}, {kind}, the innermost call first; > is your own code"]
        for frame in thread.frames:
            lines.append(f"{'>' if frame.user_code else ' '} {frame.file}:{frame.line} in {frame.function}")
            if frame.source:
                lines.append(f"      {frame.source}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _host(part: Part) -> dict[str, Any]:
    """The host's own newest telemetry, and what of its last minutes has been seen from here."""
    session = part.member.session
    view = session.view if session is not None else None
    sample = view.sample if view is not None else None
    return {
        "name": part.member.name,
        "problem": None if part.problem is None else part.problem.message,
        "sample": None if sample is None else dataclasses.asdict(sample),
        "sample_age_seconds": None if view is None else view.age(),
        "cpu_percent": [] if view is None else list(zip(view.cpu.times, view.cpu.values, strict=True)),
        "gpu_utilization_percent": {}
        if view is None
        else {
            str(index): list(zip(series.times, series.values, strict=True))
            for index, series in view.gpu_utilization.items()
        },
    }


def _readme(report: Report, missing: Iterable[str]) -> bytes:
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(report.evidence.time))
    gaps = "".join(f"  {gap}\n" for gap in missing) or "  nothing\n"
    return (
        f"Attempt {report.attempt} of {report.run}, {report.state}, as encamp {VERSION} saw it at {when}.\n\n"
        f"{report.diagnosis.verdict}: {report.diagnosis.sentence}\n\n"
        "diagnosis.json      the verdict on all ranks together\n"
        "HOST/evidence.json  what the verdict rests on; stacks/ has the Python stacks in it as text\n"
        "HOST/host.json      the host's newest telemetry, and what was seen of it from here\n"
        "HOST/telemetry.json the last minutes as the host kept them: GPUs, memory, CPU, the ranks' steps\n"
        "HOST/nccl-ras.txt   what NCCL said of its ranks, where it can\n"
        "HOST/...            files of the attempt's folder; of logs the last 256 KiB\n\n"
        f"Values of secrets that could be known were replaced by {REMOVED}. What a program of yours has\n"
        "printed may still hold what nobody else should read: look before you send it.\n\n"
        f"Missing:\n{gaps}"
    ).encode()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


# --- what must not be in it ------------------------------------------------------------------------------


def _secret_values(report: Report, contents: Mapping[str, bytes]) -> list[str]:
    """The values that are looked for in everything, the longest first."""
    found: set[str] = set()
    for path, data in contents.items():
        if path.endswith("/spec.json"):
            spec = _parsed(data)
            for variables in _variables(spec):
                found.update(str(value) for name, value in variables.items() if SECRET_NAME.search(name))
            found.update(_in_arguments(spec))
    for value in launch_secrets.known_here(report.run).values():
        found.update([value, *value.splitlines()])
    return sorted((value for value in found if len(value) >= MIN_SECRET), key=len, reverse=True)


def _spec(data: bytes) -> bytes:
    """A spec without the values of variables that sound like secrets, be they ever so short."""
    spec = _parsed(data)
    for variables in _variables(spec):
        for name in variables:
            if SECRET_NAME.search(name):
                variables[name] = REMOVED
    return _json(spec) if spec else data


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        spec = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return spec if isinstance(spec, dict) else {}


def _variables(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The variables that a spec sets: as they were asked for, and as the host made of it."""
    owners = (spec, spec.get("resolved"))
    found = [owner.get("env") for owner in owners if isinstance(owner, dict)]
    return [variables for variables in found if isinstance(variables, dict)]


def _in_arguments(spec: dict[str, Any]) -> Iterator[str]:
    """The values of what sounds like a secret: `--api-key VALUE`, `--token=VALUE`, `wandb.key=VALUE`."""
    resolved = spec.get("resolved")
    for words in (spec.get("args"), resolved.get("argv") if isinstance(resolved, dict) else None):
        texts = [str(word) for word in words] if isinstance(words, list) else []
        for word, following in zip(texts, [*texts[1:], ""], strict=True):
            name, equals, value = word.partition("=")
            if SECRET_NAME.search(name) and (equals or name.startswith("-")):
                value = value if equals else following
                if not value.startswith("-") and not NUMBER.match(value):
                    yield value


def _without(data: bytes, values: Iterable[str]) -> bytes:
    for value in values:
        for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
            data = data.replace(form.encode("utf-8", "replace"), REMOVED.encode())
    data = TOKEN.sub(lambda found: (found[1] or found[2]) + REMOVED.encode(), data)
    return IN_URL.sub(rb"\1" + REMOVED.encode() + b"@", data)


# --- the file --------------------------------------------------------------------------------------------


def _save(contents: Mapping[str, bytes], report: Report, target: Path, *, force: bool) -> int:
    """Write the archive beside its place, then put it there; its size in bytes."""
    top = f"{report.run}-attempt-{report.attempt}"
    try:
        descriptor, part = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                for path, data in sorted(contents.items()):
                    entry = tarfile.TarInfo(f"{top}/{path}")
                    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(report.evidence.time)
                    archive.addfile(entry, io.BytesIO(data))
            size = Path(part).stat().st_size
            check_target(target, force=force)
            Path(part).replace(target)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EncampError(f"{target} cannot be written: {error.strerror}.", "Name another place.") from error
    return size

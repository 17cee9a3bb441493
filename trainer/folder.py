"""The checkpoints in a folder of this host: which are there, which are complete, how one comes to count.

    step-120/                what torch.distributed.checkpoint writes
    step-120/complete.json   comes last, in one piece: without it the checkpoint does not count
    step-120.partial/        one that is being fetched from another host
    step-120.aside/          one that was newer than the one that somebody went back to: it does not count
    ../.NAME.lock            held by the run that trains with them: two would delete each other's

Nothing here knows torch or another rank.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from .errors import CheckpointError

MARKER = "complete.json"
LOCK = ".{}.lock"
PARTIAL = ".partial"
ASIDE = ".aside"
HOPELESS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT)
"""Errors of a folder that no later checkpoint can be written to either."""
NAME = re.compile(r"step-(0|[1-9][0-9]*)(\.partial)?\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where training stands: `step` steps are done, and `samples` samples have been taken in all."""

    step: int
    samples: int
    seed: int
    dataset_length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What a complete checkpoint says about itself. Copies of it on several hosts say the same."""

    position: Position
    time: float
    """When it was saved: seconds since the epoch by the clock of the host of rank 0."""
    framework: str = "torch"
    """What has written it, and alone can read it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What is in a folder: the complete ones by step, and the steps of newer ones that are not complete."""

    complete: Mapping[int, Record]
    incomplete: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The checkpoint to resume from, and which of the listed folders have it. Folders go by their number."""

    record: Record
    holders: tuple[int, ...]
    lacking: tuple[int, ...]


def choose(listings: Sequence[Listing], names: Sequence[str]) -> Choice | None:
    """The newest checkpoint that is complete in one of the folders. `names` are those of their hosts.

    Raises CheckpointError when the folders hold different checkpoints of its step.
    """
    step = max((step for listing in listings for step in listing.complete), default=None)
    if step is None:
        return None
    holders = tuple(number for number, listing in enumerate(listings) if step in listing.complete)
    first = holders[0]
    record = listings[first].complete[step]
    for other in holders[1:]:
        if listings[other].complete[step] != record:
            raise CheckpointError(
                f"{names[first]} and {names[other]} hold different checkpoints of step {step}: they trained "
                f"apart; remove step-{step} on the one whose training is not to be continued"
            )
    lacking = tuple(number for number in range(len(listings)) if number not in holders)
    return Choice(record=record, holders=holders, lacking=lacking)


def wanted_step(environment: Mapping[str, str]) -> int | None:
    """The step that whoever restarts the run wants to go back to, by $ENCAMP_RESUME_STEP; None: the newest.

    Raises CheckpointError when it is no number.
    """
    word = environment.get("ENCAMP_RESUME_STEP")
    if word is None:
        return None
    if not (word.isascii() and word.isdigit()):
        raise CheckpointError(f"ENCAMP_RESUME_STEP={word}: that is no step")
    return int(word)


def refuse_missing(step: int, listings: Sequence[Listing], path: Path) -> None:
    """Raise CheckpointError unless one of the folders has the complete checkpoint of `step`, or it is 0."""
    there = sorted({each for listing in listings for each in listing.complete})
    if step and step not in there:
        have = f"there are those of {', '.join(map(str, there))}" if there else "there is none"
        raise CheckpointError(f"{path} has no complete checkpoint of step {step}: {have}")


def refuse_foreign(record: Record, folder: CheckpointFolder, framework: str) -> None:
    """Raise CheckpointError when `framework` cannot read the checkpoint of `record`."""
    if record.framework == framework:
        return
    names = {"torch": "torch", "tensorflow": "TensorFlow"}
    theirs, ours = names.get(record.framework, record.framework), names[framework]
    raise CheckpointError(
        f"{folder.of(record.position.step)} is a checkpoint of {theirs}, which {ours} cannot read: go on "
        f"under a strategy of {theirs}, or set --checkpoint-dir to another folder"
    )


class CheckpointFolder:
    """The folder at `path`, which need not exist yet. Methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: BinaryIO | None = None

    def hold(self) -> None:
        """Keep other runs out until this process ends. Raises OSError when one trains with this folder.

        A file system without locks, as some network ones are, and a parent that is not ours keep nobody out.
        """
        try:
            self._lock = self.path.with_name(LOCK.format(self.path.name)).open("ab")
            # Not flock: that would be inherited by processes that prepare data, which may outlive this one.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN) and self._lock is not None:
                raise OSError(
                    f"another run is training with the checkpoints in {self.path}: stop it, or set "
                    "--checkpoint-dir to another folder"
                ) from error

    def of(self, step: int) -> Path:
        """Where the checkpoint of that step is."""
        return self.path / f"step-{step}"

    def partial(self, step: int) -> Path:
        """Where the checkpoint of that step is while it comes in from another host."""
        return self.path / f"step-{step}{PARTIAL}"

    def listing(self) -> Listing:
        """What is there."""
        complete: dict[int, Record] = {}
        incomplete: list[int] = []
        for step in self._steps():
            record = self._record(step)
            if record is not None:
                complete[step] = record
            else:
                incomplete.append(step)
        newest = max(complete, default=-1)
        return Listing(complete=complete, incomplete=tuple(step for step in incomplete if step > newest))

    def try_out(self) -> None:
        """Raise OSError where nothing can be written here, now or later. A full disk may have room again."""
        mark = self.path / f".try-{os.getpid()}"
        try:
            with contextlib.suppress(FileExistsError):  # a file is: what comes next says so
                self.path.mkdir(parents=True, exist_ok=True)
            mark.touch()
            mark.unlink()
        except OSError as error:
            if error.errno in HOPELESS:
                raise

    def prepare(self, step: int) -> None:
        """Make an empty folder for a checkpoint."""
        # What is there was left over from an attempt that ended while it wrote.
        self.remove(step)
        self.of(step).mkdir(parents=True)

    def complete(self, record: Record, more: Mapping[str, object]) -> None:
        """Let the checkpoint count. `more` is for people who look into the marker."""
        path = self.of(record.position.step)
        temporary = path / f"{MARKER}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            about = {"time": record.time, "framework": record.framework}
            json.dump(asdict(record.position) | about | dict(more), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path / MARKER)

    def adopt(self, step: int) -> None:
        """Let the checkpoint that has come in take its place."""
        shutil.rmtree(self.of(step), ignore_errors=True)
        self.partial(step).replace(self.of(step))

    def go_back(self, step: int) -> Listing:
        """Set all that are newer than `step` aside: training goes another way from there on."""
        for newer in self._steps():
            if newer > step:
                aside = self.path / f"step-{newer}{ASIDE}"
                shutil.rmtree(aside, ignore_errors=True)
                self.of(newer).replace(aside)
        return self.listing()

    def remove(self, step: int) -> None:
        """Remove a checkpoint, as far as possible."""
        # The marker goes first: what is half deleted must not look complete.
        try:
            (self.of(step) / MARKER).unlink()
        except OSError:
            pass
        shutil.rmtree(self.of(step), ignore_errors=True)

    def remove_partial(self) -> None:
        """Remove what came in from another host and never became complete."""
        for step in self._steps(PARTIAL):
            shutil.rmtree(self.partial(step), ignore_errors=True)

    def prune(self, newest: int, keep: int, keep_every: int = 0) -> None:
        """Of the checkpoints up to step `newest`, leave the last `keep` complete ones.

        And, unless `keep_every` is 0, the complete ones of steps that are a multiple of it.
        """
        self.remove_partial()
        steps = self._steps()
        complete = [step for step in steps if self._record(step) is not None]
        for step in steps:
            for_good = keep_every > 0 and step % keep_every == 0 and step in complete
            if step < newest and not for_good and step not in complete[-keep:]:
                self.remove(step)

    def _steps(self, suffix: str | None = None) -> list[int]:
        try:
            names = [entry.name for entry in self.path.iterdir()]
        except FileNotFoundError:
            return []
        matches = (NAME.match(name) for name in names)
        return sorted(int(match[1]) for match in matches if match and match[2] == suffix)

    def _record(self, step: int) -> Record | None:
        try:
            said = json.loads((self.of(step) / MARKER).read_bytes())
            position = Position(**{name: int(said[name]) for name in Position.__slots__})
            framework = str(said.get("framework", "torch"))
            record = Record(position=position, time=float(said["time"]), framework=framework)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        return record if position.step == step else None

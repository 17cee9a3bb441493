"""Writes checkpoints: all ranks together, one at a time, while training waits or while it goes on.

A save in the background holds training up until the state is copied. Everything else happens in a thread of
each rank: the ranks' threads agree over process groups of their own, so that the marker comes as soon as all
have written, and no step of the training waits for it. How a save has ended is the same on all ranks; each
learns it when it asks.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from .errors import CheckpointError
from .folder import CheckpointFolder, Position, Record
from .places import Places
from .staging import Buffers, Staging
from .strategies.base import Strategy

GROUPS_WORK = torch.__version__ >= (2, 7)
"""Whether DCP works in a group without rank 0. Before, it asks rank 0 of the world."""

State = dict[str, dict[str, Any]]
Release = Callable[[], None]
"""Called once the state has been copied, also by ranks that write nothing of it."""


class Save:
    """A checkpoint of `step`, written to `path` or on its way there."""

    def __init__(self, step: int, path: Path) -> None:
        self.step = step
        self.path = path
        self.held_up = 0.0
        """Seconds that training has waited for it."""
        self.began = time.perf_counter()
        self.ended: Future[float] = Future()

    @property
    def is_over(self) -> bool:
        """Whether it has come to a good or bad end on this rank. Others may see it some steps apart."""
        return self.ended.done()

    def wait(self) -> None:
        """Wait for its end, whatever that is."""
        began = time.perf_counter()
        wait((self.ended,))
        self.held_up += time.perf_counter() - began

    def result(self) -> float:
        """Wait for its end. Returns the seconds from its beginning until the checkpoint counted.

        Raises CheckpointError when any host could not write it: then none has it.
        """
        self.wait()
        return self.ended.result() - self.began


class Saver:
    """Writes the checkpoints of a run into `folder`. Every method is called by all ranks together.

    Of the complete ones the last `keep` are left, and those of steps that are a multiple of `keep_every`.
    """

    def __init__(self, folder: CheckpointFolder, places: Places, *, keep: int, keep_every: int) -> None:
        self.folder = folder
        self.places = places.apart()
        self.keep = keep
        self.keep_every = keep_every
        self._buffers: Buffers = {}

    def save(self, strategy: Strategy, position: Position, *, background: bool) -> Save:
        """Write a checkpoint: to its end, or in the background once the state is copied.

        The one before it must be over.
        """
        save = Save(position.step, self.folder.of(position.step))
        # They are emptied when they are copied: what was gathered for the checkpoint is not kept for long.
        state = {name: dict(part) for name, part in strategy.state()[0].items()}
        if background:
            self._start(save, state, position, strategy.world.device)
        else:
            try:
                self._write(state, position)
                save.ended.set_result(time.perf_counter())
            except CheckpointError as error:
                save.ended.set_exception(error)
        save.held_up = time.perf_counter() - save.began
        return save

    def _start(self, save: Save, state: State, position: Position, device: torch.device) -> None:
        copied = threading.Event()

        def release() -> None:
            for part in state.values():
                part.clear()
            copied.set()

        def work() -> float:
            try:
                if device.type == "cuda":
                    torch.cuda.set_device(device)  # each thread has its own
                self._write(state, position, release)
                return time.perf_counter()
            finally:
                copied.set()

        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the copies are made on another stream than the training's
        # The interpreter waits for it at its end: a rank whose job fails does not tear a checkpoint apart.
        pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        save.ended = pool.submit(work)
        pool.shutdown(wait=False)
        copied.wait()

    def _write(self, state: State, position: Position, release: Release | None = None) -> None:
        """Write `state`: copies of it if there is something to `release`. Raises CheckpointError."""
        step = position.step
        path = self.folder.of(step)
        try:
            times = self.places.leaders_do(lambda: self._prepare(step))
            self.places.all_do(lambda: self._write_pieces(state, path, release))
            record = Record(position=position, time=times[0])
            self.places.leaders_do(lambda: self.folder.complete(record, _about()))
        except CheckpointError as error:
            self.places.leaders_do(lambda: self.folder.remove(step))
            raise CheckpointError(f"{path} could not be written: {error}") from error
        self.places.leaders_do(lambda: self.folder.prune(step, self.keep, self.keep_every))

    def _prepare(self, step: int) -> float:
        self.folder.prepare(step)
        return time.time()

    def _write_pieces(self, state: State, path: Path, release: Release | None) -> None:
        planner = Staging(self._buffers, release) if release is not None else None
        try:
            if not self.places.several:
                dcp.save(state, checkpoint_id=path, planner=planner, process_group=self.places.everybody)
            elif GROUPS_WORK:
                dcp.save(state, checkpoint_id=path, planner=planner, process_group=self.places.group)
            elif self.places.leads:
                writer = dcp.FileSystemWriter(path)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FutureWarning)  # these versions know no other way
                    dcp.save_state_dict(state, writer, no_dist=True, planner=planner)
            elif release is not None:
                release()
        except dcp.api.CheckpointException as error:
            raise CheckpointError(_reason(next(iter(error.failures.values()))[0])) from error


def _reason(error: BaseException) -> str:
    """Why a rank could not write. Of a full disk torch tells only where in a file it then was."""
    said = str(error)
    return "a file could not be written to its end: is the disk full?" if "unexpected pos" in said else said


def _about() -> dict[str, object]:
    return {"world_size": dist.get_world_size(), "torch": torch.__version__}

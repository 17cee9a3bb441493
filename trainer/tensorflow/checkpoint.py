"""Checkpoints: in the folder, and with the marker, of every other strategy, but written by TensorFlow's side.

    step-120/state.npz       every variable of model and optimizer under its name, as NumPy's arrays
    step-120/complete.json   comes last

One process has all there is to save. Saving in the background holds training up until the variables are
copied to the host's memory.
"""

from __future__ import annotations

import os
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ..errors import CheckpointError
from ..folder import CheckpointFolder, Position, Record, choose, refuse_foreign, refuse_missing

STATE = "state.npz"
FRAMEWORK = "tensorflow"
UPDATES = "optimizer/updates"
"""How many steps have changed the weights."""


class Save:
    """A checkpoint of `step` that is written to `path`."""

    def __init__(self, step: int, path: Path, future: Future[None]) -> None:
        self.step = step
        self.path = path
        self.began = time.perf_counter()
        self.held_up = 0.0
        """Seconds that training has waited for it."""
        self._future = future

    @property
    def is_over(self) -> bool:
        """Whether it has come to a good or bad end."""
        return self._future.done()

    def result(self) -> None:
        """Wait for its end. Raises CheckpointError when it could not be written: then there is none."""
        try:
            self._future.result()
        except OSError as error:
            raise CheckpointError(f"{self.path} could not be written: {error}") from error


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, path: Path, *, keep: int, keep_every: int, say: Callable[[str], None]) -> None:
        self.folder = CheckpointFolder(path)
        self.keep = keep
        self.keep_every = keep_every
        self.say = say

    def newest(self, wanted: int | None = None) -> Position | None:
        """The newest complete checkpoint, or None. Incomplete ones newer than it are named and ignored.

        With `wanted` that of this step, after newer ones were set aside; 0 is none. Raises CheckpointError
        when the folder cannot be read, has not `wanted`, holds torch's, or another run trains with it.
        """
        try:
            self.folder.path.mkdir(parents=True, exist_ok=True)
            self.folder.hold()
            listing = self.folder.listing()
            if wanted is not None:
                refuse_missing(wanted, [listing], self.folder.path)
                listing = self.folder.go_back(wanted)
        except OSError as error:
            raise CheckpointError(str(error)) from error
        for step in reversed(listing.incomplete):
            self.say(f"ignoring {self.folder.of(step)}: it was not written to its end")
        choice = choose([listing], [""])
        if choice is None:
            what = "no complete checkpoint" if listing.incomplete else "no checkpoint"
            self.say(f"{what} in {self.folder.path}: starting at step 1")
            return None
        refuse_foreign(choice.record, self.folder, FRAMEWORK)
        return choice.record.position

    def load(self, variables: Mapping[str, Any], position: Position) -> int:
        """Fill the variables. Returns how many steps have changed the weights. Raises CheckpointError."""
        path = self.folder.of(position.step)
        try:
            with np.load(path / STATE, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            updates = int(arrays.pop(UPDATES))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise CheckpointError(
                f"{path} cannot be read: {error}\nremove it, and training resumes from the one before it"
            ) from error
        _compare(variables, arrays, path)
        for name, variable in variables.items():
            variable.assign(tf.cast(arrays[name], variable.dtype))
        return updates

    def save(
        self, variables: Mapping[str, Any], updates: int, position: Position, *, background: bool
    ) -> Save:
        """Write a checkpoint: to its end, or in the background once the state is copied.

        The one before it must be over. Those that are too many are deleted.
        """
        began = time.perf_counter()
        arrays = {name: _array(variable) for name, variable in variables.items()}
        arrays[UPDATES] = np.asarray(updates)
        pool = ThreadPoolExecutor(1, "checkpoint")
        future = pool.submit(self._write, arrays, position)
        pool.shutdown(wait=not background)
        save = Save(position.step, self.folder.of(position.step), future)
        save.held_up, save.began = time.perf_counter() - began, began
        return save

    def _write(self, arrays: dict[str, Any], position: Position) -> None:
        step = position.step
        try:
            self.folder.prepare(step)
            with (self.folder.of(step) / STATE).open("wb") as file:
                np.savez(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
            record = Record(position=position, time=time.time(), framework=FRAMEWORK)
            self.folder.complete(record, {"tensorflow": tf.__version__})
        except OSError:
            self.folder.remove(step)
            raise
        self.folder.prune(step, self.keep, self.keep_every)


def _array(variable: Any) -> Any:
    value = variable.numpy()
    # NumPy's files know no bfloat16; float32 holds each of its numbers.
    return value.astype(np.float32) if value.dtype == tf.bfloat16.as_numpy_dtype else value


def _compare(variables: Mapping[str, Any], saved: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError with the first variable that differs between this model and the checkpoint."""
    other = f"{path} is a checkpoint of another model"
    for name, variable in variables.items():
        short = name.partition("/")[2] if name.startswith("model/") else name
        if name not in saved:
            raise CheckpointError(f"{other}: it has no {short}")
        there, here = saved[name].shape, tuple(variable.shape)
        if there != here:
            raise CheckpointError(f"{other}: {short} is {there} there and {here} here")
    for name in saved:
        if name not in variables:
            raise CheckpointError(f"{other}: it has {name.partition('/')[2]}, which this model lacks")

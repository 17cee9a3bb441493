"""Checkpoints: written so that a half-written one is never taken for a whole one, and found again on restart.

    CHECKPOINT_DIR/step-120/                what torch.distributed.checkpoint writes, all ranks together
    CHECKPOINT_DIR/step-120/complete.json   comes last, in one piece: without it the checkpoint does not count

It holds the weights under the job's own names and the optimizer's state, so that another number of ranks can
load it. The step and the number of the next sample are in `complete.json`; learning rate, data order and
random numbers follow from them.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from .errors import CheckpointError
from .strategies.base import Strategy
from .world import World

T = TypeVar("T")

MARKER = "complete.json"
FOLDER = re.compile(r"step-(0|[1-9][0-9]*)\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where training stands: `step` steps are done, and `samples` samples have been taken in all."""

    step: int
    samples: int
    seed: int
    dataset_length: int


class Checkpoints:
    """The checkpoints of one run. Every method is called by all ranks together."""

    def __init__(self, folder: Path, *, keep: int, world: World, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.keep = keep
        self.world = world
        self.say = say

    def newest(self) -> Position | None:
        """The newest complete checkpoint, or None. Incomplete ones newer than it are named and ignored.

        Raises CheckpointError when the folder cannot be read.
        """
        position, ignored = self._first_does(self._find)
        for step in ignored:
            self.say(f"ignoring {self._path(step)}: it was not written to its end")
        return position

    def load(self, strategy: Strategy, position: Position) -> None:
        """Fill the strategy's model and optimizer. Raises CheckpointError."""
        path = self._path(position.step)
        # The options of this run hold, not those of the run that wrote the checkpoint.
        settings = [
            {key: value for key, value in group.items() if key != "params"}
            for group in strategy.optimizer.param_groups
        ]
        state = _state(strategy)
        try:
            _compare(state["model"], dcp.FileSystemReader(path).read_metadata().state_dict_metadata, path)
            dcp.load(state, checkpoint_id=path)
        except dcp.api.CheckpointException as error:
            raise _unreadable(path, _reason(error)) from error
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise _unreadable(path, error) from error
        set_state_dict(
            strategy.model,
            strategy.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        for group, values in zip(strategy.optimizer.param_groups, settings, strict=True):
            group.update(values)

    def save(self, strategy: Strategy, position: Position) -> Path:
        """Write a checkpoint, and delete those that are too many. Raises CheckpointError."""
        path = self._path(position.step)
        try:
            self._first_does(lambda: _prepare(path))
            dcp.save(_state(strategy), checkpoint_id=path)
            self._first_does(lambda: self._complete(path, position))
        except (CheckpointError, dcp.api.CheckpointException) as error:
            self._first_does(lambda: shutil.rmtree(path, ignore_errors=True))
            reason = _reason(error) if isinstance(error, dcp.api.CheckpointException) else error
            raise CheckpointError(f"{path} could not be written: {reason}") from error
        self._first_does(lambda: self._prune(position.step))
        return path

    def _complete(self, path: Path, position: Position) -> None:
        record = asdict(position) | {
            "time": time.time(),
            "world_size": self.world.size,
            "torch": torch.__version__,
        }
        temporary = path / f"{MARKER}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(record, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path / MARKER)

    def _prune(self, newest: int) -> None:
        complete = [step for step in self._steps() if self._position(step) is not None]
        for step in self._steps():
            if step < newest and step not in complete[-self.keep :]:
                # The marker goes first: what is half deleted must not look complete.
                (self._path(step) / MARKER).unlink(missing_ok=True)
                shutil.rmtree(self._path(step), ignore_errors=True)

    def _find(self) -> tuple[Position | None, list[int]]:
        ignored: list[int] = []
        for step in reversed(self._steps()):
            position = self._position(step)
            if position is not None:
                return position, ignored
            ignored.append(step)
        return None, ignored

    def _first_does(self, action: Callable[[], T]) -> T:
        """Let the first rank act while the others wait, and give all of them the result.

        All raise CheckpointError when it fails.
        """
        outcome: list[Any] = [None, None]
        if self.world.first:
            try:
                outcome[0] = action()
            except OSError as error:
                outcome[1] = str(error)
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise CheckpointError(outcome[1])
        return cast(T, outcome[0])

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def _steps(self) -> list[int]:
        try:
            names = [entry.name for entry in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := FOLDER.match(name)))

    def _position(self, step: int) -> Position | None:
        try:
            record = json.loads((self._path(step) / MARKER).read_bytes())
            position = Position(**{name: int(record[name]) for name in Position.__slots__})
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return position if position.step == step else None


def _state(strategy: Strategy) -> dict[str, Any]:
    model, optimizer = get_state_dict(strategy.model, strategy.optimizer)
    return {"model": model, "optimizer": optimizer}


def _prepare(path: Path) -> None:
    # What is there was left over from an attempt that ended while it wrote.
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


def _reason(error: Any) -> BaseException:
    """What one of the ranks said that failed in a save or load."""
    cause: BaseException = next(iter(error.failures.values()))[0]
    return cause


def _unreadable(path: Path, reason: BaseException) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read: {reason}\nremove it, and training resumes from the one before it"
    )


def _compare(model: dict[str, Any], saved: dict[str, Any], path: Path) -> None:
    """Raise CheckpointError with the first parameter that differs between the model and the checkpoint."""
    stored = {key.removeprefix("model."): value for key, value in saved.items() if key.startswith("model.")}
    other = f"{path} is a checkpoint of another model"
    for name, value in model.items():
        if name not in stored:
            raise CheckpointError(f"{other}: it has no {name}")
        there = tuple(getattr(stored[name], "size", ()))
        if isinstance(value, torch.Tensor) and there != tuple(value.shape):
            raise CheckpointError(f"{other}: {name} is {there} there and {tuple(value.shape)} here")
    surplus = [name for name in stored if name not in model]
    if surplus:
        raise CheckpointError(f"{other}: it has {surplus[0]}, which this model lacks")

"""Checkpoints: found again on restart, brought to the hosts that lack them, read. `saving` writes them.

They hold the weights under the job's own names and the optimizer's state, so that another number of ranks can
load them. The step and the number of the next sample are in `complete.json`; learning rate, data order and
random numbers follow from them.

Where the hosts share the folder, all ranks write one checkpoint. Where they do not, each host writes a whole
one, and it counts on none before it is written on all. To resume, the newest that any host has will do: the
others get it from there. So nothing is lost with a host, and a new one needs nothing.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from . import saving
from .errors import CheckpointError, UsageError
from .folder import CheckpointFolder, Choice, Listing, Position, choose, refuse_foreign, refuse_missing
from .places import Places
from .saving import Save, Saver
from .strategies.base import Strategy
from .transfer import Transfer


class Checkpoints:
    """The checkpoints of one run. Every method is called by all ranks together."""

    def __init__(
        self, path: Path, *, keep: int, keep_every: int = 0, places: Places, say: Callable[[str], None]
    ) -> None:
        self.folder = CheckpointFolder(path)
        self.places = places
        self.saver = Saver(self.folder, places, keep=keep, keep_every=keep_every)
        self.say = say

    def check(self, strategy: Strategy) -> None:
        """Raise CheckpointError where none can be written, and not only learn it at the first.

        Or where another run writes its own.

        And UsageError where checkpoints would lie in pieces on hosts that cannot see each other's.
        """
        try:
            self.places.leaders_do(self.folder.try_out)
        except CheckpointError as error:
            raise CheckpointError(
                f"no checkpoint can be written to {self.folder.path}: {error}; set --checkpoint-dir to a "
                "folder that can be written to"
            ) from error
        self.places.leaders_do(self.folder.hold)
        if not self.places.several:
            return
        reach = set(self.places.ranks[self.places.own]) if saving.GROUPS_WORK else {dist.get_rank()}
        if not self.places.hold_all(strategy.replica_ranks <= reach):
            raise UsageError(
                f"--strategy {strategy.cfg.strategy} spreads the model over the hosts, and they do not share "
                f"{self.folder.path}: a checkpoint would be in pieces; set --checkpoint-dir to a folder that "
                "all hosts share"
            )

    def newest(self, wanted: int | None = None) -> Position | None:
        """The newest complete checkpoint of any host, now on every host, or None.

        With `wanted` that of this step, after newer ones were set aside; 0 is none. Incomplete ones newer
        than it are named and ignored. Raises CheckpointError when a folder cannot be read, when none has
        `wanted`, when hosts hold different checkpoints of its step, and when those without it cannot get it.
        """
        listings = self.places.leaders_do(self.folder.listing)
        if wanted is not None:
            refuse_missing(wanted, listings, self.folder.path)
            listings = self.places.leaders_do(lambda: self.folder.go_back(wanted))
        choice = choose(listings, self.places.names)
        newest = choice.record.position.step if choice is not None else -1
        self._name_ignored(listings, newest)
        if choice is None:
            return None
        refuse_foreign(choice.record, self.folder, "torch")
        if choice.lacking:
            self._fetch(choice)
        return choice.record.position

    def load(self, strategy: Strategy, position: Position) -> None:
        """Fill the strategy's model and optimizer. Raises CheckpointError."""
        path = self.folder.of(position.step)
        state, groups = strategy.state()
        saved, failures = self.places.attempt(lambda: _names_and_sizes(path))
        self._refuse_unreadable(path, failures)
        _, failures = self.places.attempt(
            lambda: _compare(state["model"], saved or {}, path, strategy.elsewhere)
        )
        if failures:
            raise CheckpointError(next(iter(failures.values())))
        moments = state["optimizer"]["state"]
        unused, failures = self.places.attempt(lambda: _unused(moments, saved or {}, path))
        if failures:
            raise CheckpointError(next(iter(failures.values())))
        as_new = {name: moments.pop(name) for name in unused or ()}
        if not any(name.startswith("scaler.") for name in saved or {}):
            state.pop("scaler", None)  # of a run that scaled no loss: the scale is found as at a beginning
        _, failures = self.places.attempt(lambda: self._read(state, path))
        self._refuse_unreadable(path, failures)
        moments |= as_new
        strategy.restore(state, groups)
        strategy.forget_moments(as_new.keys())

    def save(self, strategy: Strategy, position: Position, *, background: bool) -> Save:
        """Write a checkpoint, and delete those that are too many: see `Saver.save`."""
        return self.saver.save(strategy, position, background=background)

    def _read(self, state: dict[str, Any], path: Path) -> None:
        try:
            # Every rank reads from its own host's folder what it needs; they only agree that all could.
            dcp.load(state, checkpoint_id=path)
        except dcp.api.CheckpointException as error:
            failed = [rank for rank in self.places.ranks[self.places.own] if rank in error.failures]
            if failed:
                raise CheckpointError(_first_line(error.failures[failed[0]][0])) from error
        except (EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(_first_line(error)) from error

    def _refuse_unreadable(self, path: Path, failures: dict[int, str]) -> None:
        if not failures:
            return
        reason = next(iter(failures.values()))
        where, advice = "", "remove it, and training resumes from the one before it"
        if len(failures) < len(self.places.ranks):
            where = f" on {self.places.named(failures)}"
            advice = "remove it there, and it is fetched from another host"
        elif self.places.several:
            where = " on any host"
            advice = "remove it on all of them, and training resumes from the one before it"
        raise CheckpointError(f"{path} cannot be read{where}: {reason}\n{advice}")

    def _name_ignored(self, listings: list[Listing], newest: int) -> None:
        ignored = 0
        for number, listing in enumerate(listings):
            where = f" on {self.places.names[number]}" if self.places.several else ""
            for step in reversed(listing.incomplete):
                if step > newest:
                    self.say(f"ignoring {self.folder.of(step)}{where}: it was not written to its end")
                    ignored += 1
        if newest < 0:
            where = f" on any of the {self.places.nodes} hosts" if self.places.several else ""
            what = "no complete checkpoint" if ignored else "no checkpoint"
            self.say(f"{what} in {self.folder.path}{where}: starting at step 1")

    def _fetch(self, choice: Choice) -> None:
        step, source = choice.record.position.step, choice.holders[0]
        names, lacking = self.places.names, self.places.named(choice.lacking)
        self.say(f"step-{step} is missing on {lacking}: fetching it from {names[source]}")
        began = time.perf_counter()
        try:
            size = Transfer(self.folder, self.places, step, source, choice.lacking).run()
        except CheckpointError as error:
            raise CheckpointError(
                f"step-{step} could not be fetched from {names[source]} to {lacking}: {error}"
            ) from error
        self.say(f"fetched {size / 1e6:.1f} MB in {time.perf_counter() - began:.1f} s")


def _names_and_sizes(path: Path) -> dict[str, Any]:
    """What a checkpoint says that it holds. Raises CheckpointError or OSError when it cannot be read."""
    try:
        found: dict[str, Any] = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    except (EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(str(error)) from error
    return found


def _compare(model: dict[str, Any], saved: dict[str, Any], path: Path, elsewhere: frozenset[str]) -> None:
    """Raise CheckpointError with the first parameter that differs between the model and the checkpoint.

    `elsewhere` are those that other ranks compare.
    """
    stored = {key.removeprefix("model."): value for key, value in saved.items() if key.startswith("model.")}
    other = f"{path} is a checkpoint of another model"
    # What a module adds to its state may be a dictionary, and then is there in parts.
    parts = {name: _prefixes(name) for name in stored if name not in model}
    whole = {*stored, *(prefix for prefixes in parts.values() for prefix in prefixes)}
    for name, value in model.items():
        if name not in whole:
            raise CheckpointError(f"{other}: it has no {name}")
        if name not in stored:
            continue
        there = tuple(getattr(stored[name], "size", ()))
        if isinstance(value, torch.Tensor) and there != tuple(value.shape):
            raise CheckpointError(f"{other}: {name} is {there} there and {tuple(value.shape)} here")
    known = model.keys() | elsewhere
    surplus = [name for name, prefixes in parts.items() if known.isdisjoint((name, *prefixes))]
    if surplus:
        raise CheckpointError(f"{other}: it has {surplus[0]}, which this model lacks")


def _unused(moments: dict[str, Any], saved: dict[str, Any], path: Path) -> list[str]:
    """The names in `moments` of which the checkpoint has nothing: no step had used these parameters.

    Raises CheckpointError when it is another optimizer's.
    """
    start = "optimizer.state."
    known = {name for key in saved if key.startswith(start) for name in (key, *_prefixes(key))}
    unused = []
    for name, entry in moments.items():
        lacking = [kind for kind in entry if f"{start}{name}.{kind}" not in known]
        if lacking and (f"{start}{name}" in known or not known):
            raise CheckpointError(
                f"{path} is a checkpoint of another optimizer: it has no {lacking[0]} of {name}; go on with "
                "the optimizer that it was saved with, or set --checkpoint-dir to another folder"
            )
        if lacking:
            unused.append(name)
    return unused


def _prefixes(name: str) -> list[str]:
    """`a.b` and `a` for `a.b.c`."""
    words = name.split(".")
    return [".".join(words[:count]) for count in range(len(words) - 1, 0, -1)]


def _first_line(error: BaseException) -> str:
    """What is wrong with a file. Of torch's advice, which is for programmers, nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]

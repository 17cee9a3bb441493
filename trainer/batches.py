"""How many samples make a step, and who takes which: arithmetic without torch.

Samples are numbered in the order in which training takes them, from 0 on and across epochs. The number of the
next sample is all the state there is: it, the seed and the length of the dataset give the rest of the order,
for any number of ranks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

from .config import Config
from .errors import UsageError

ROUNDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """One step: `global_batch` samples, the same number for each rank, taken in `accumulation` micro-batches.

    The last micro-batch of a rank is smaller when its share is not a multiple of `micro_batch`.
    """

    global_batch: int
    micro_batch: int
    accumulation: int
    ranks: int

    @classmethod
    def derive(cls, cfg: Config, ranks: int, stages: int = 1) -> BatchPlan:
        """Fill in what the options leave open. Raises UsageError when they contradict each other.

        `ranks` are those with samples of their own; a pipeline of `stages` needs as many micro-batches.
        """
        micro = int(cfg.micro_batch)
        if cfg.global_batch is None:
            accumulation = cfg.accumulation or stages
            return cls(
                global_batch=micro * accumulation * ranks,
                micro_batch=micro,
                accumulation=accumulation,
                ranks=ranks,
            )
        share, rest = divmod(cfg.global_batch, ranks)
        if rest:
            near = f"{share * ranks} or {(share + 1) * ranks}" if share else str(ranks)
            raise UsageError(
                f"--global-batch {cfg.global_batch} cannot be shared equally by {ranks} ranks: use {near}"
            )
        accumulation = math.ceil(share / micro)
        if cfg.accumulation not in (None, accumulation):
            each = f" for each of {ranks} ranks" if ranks > 1 else ""
            raise UsageError(
                f"--accumulation {cfg.accumulation} does not fit: a global batch of {cfg.global_batch} is "
                f"{share} samples{each}, which takes {accumulation} micro-batches of "
                f"{micro}; leave one of the three out"
            )
        return cls(global_batch=cfg.global_batch, micro_batch=micro, accumulation=accumulation, ranks=ranks)

    @property
    def share(self) -> int:
        """Samples of a step that one rank takes."""
        return self.global_batch // self.ranks

    def __str__(self) -> str:
        return (
            f"{self.global_batch}: {self.share} samples a rank, {min(self.micro_batch, self.share)} at a time"
        )


class MicroBatches:
    """One rank's micro-batches as lists of indices into the dataset, from sample `start` on, without end."""

    def __init__(self, plan: BatchPlan, *, length: int, seed: int, rank: int, start: int) -> None:
        self.plan = plan
        self.order = Order(length, seed)
        self.rank = rank
        self.start = start

    def __iter__(self) -> Iterator[list[int]]:
        position = self.start
        share, micro = self.plan.share, self.plan.micro_batch
        while True:
            first = position + self.rank * share
            for begin in range(first, first + share, micro):
                end = min(begin + micro, first + share)
                yield [self.order[sample] for sample in range(begin, end)]
            position += self.plan.global_batch


class Order:
    """Which index of a dataset of `length` entries the n-th sample is: another shuffle in each epoch.

    The shuffle is a Feistel network over a grid of about `length` cells: any entry is found at once, nothing
    is stored, and it is the same with every version of torch.
    """

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.seed = seed
        self.columns = math.isqrt(length - 1) + 1
        self.rows = -(-length // self.columns)
        self.epoch = -1
        self.keys: tuple[int, ...] = ()

    def __getitem__(self, sample: int) -> int:
        epoch, place = divmod(sample, self.length)
        if epoch != self.epoch:
            digest = hashlib.blake2b(f"{self.seed}:{epoch}".encode(), digest_size=8 * ROUNDS).digest()
            self.keys = tuple(int.from_bytes(digest[at : at + 4], "big") for at in range(0, 8 * ROUNDS, 4))
            self.epoch = epoch
        keys, rows, columns = self.keys, self.rows, self.columns
        while True:
            row, column = divmod(place, columns)
            for at in range(0, 2 * ROUNDS, 2):
                row = (row + mix(column ^ keys[at])) % rows
                column = (column + mix(row ^ keys[at + 1])) % columns
            place = row * columns + column
            if place < self.length:  # else a cell beyond the end of the dataset: shuffle on from there
                return place


def mix(value: int) -> int:
    """32 well-mixed bits of `value`."""
    value = (value ^ value >> 16) * 0x7FEB352D & 0xFFFFFFFF
    value = (value ^ value >> 15) * 0x846CA68B & 0xFFFFFFFF
    return value ^ value >> 16


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of what `rank` draws in `step`: a resumed run draws what it would have drawn uninterrupted."""
    digest = hashlib.blake2b(f"{seed}:{step}:{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1

"""Finding the micro-batch by trying: what is found, that ranks agree, and that nothing is left of it.

The GPU's memory is played: a job says that it is out of it above some number of samples, or a meter does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import together
from training import Trainings, job, records

from trainer import contract, fitting, strategies
from trainer.config import parse
from trainer.errors import UsageError
from trainer.member import Member
from trainer.progress import Progress
from trainer.world import World

JOB = """
import os
import torch
from torch import nn

SIZES = []

def build_model(cfg):
    assert cfg.micro_batch != "auto"
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 1))

def build_dataset(cfg, split):
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(1))
    return list(zip(x, x.sum(1, keepdim=True), strict=True))

def loss(output, batch):
    SIZES.append(len(output))
    if len(output) > int(os.environ.get("JOB_FITS", "1000")):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory, as it were")
    return (output - batch[1]).square().sum(), len(output)
"""


class Meter:
    """Memory in which a step of n samples takes `base + each * n` bytes, as the job counts them."""

    def __init__(self, base: int = 100, each: int = 10, usable: int = 10**9, sizes: Any = (0,)) -> None:
        self.base, self.each, self.limit, self.sizes = base, each, usable, sizes

    def begin(self) -> None:
        """As a GPU's."""

    def used(self) -> int:
        """As a GPU's."""
        return self.base // 2

    def peak(self) -> int:
        """As a GPU's."""
        return self.base + self.each * self.sizes[-1]

    def usable(self) -> int:
        """As a GPU's."""
        return self.limit


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The job, on a machine where trying is possible."""
    monkeypatch.setattr(fitting, "memory_of", lambda _: Meter())
    path = tmp_path / "limited.py"
    path.write_text(JOB)
    return str(path)


@pytest.mark.parametrize(
    ("share", "fits", "micro", "accumulation"),
    [
        (12, 5, 4, 3),
        (12, 8, 6, 2),  # not 8 and then 4
        (12, 12, 12, 1),
        (12, 1000, 12, 1),
        (13, 1, 1, 13),
        (7, 6, 4, 2),
    ],
)
def test_the_micro_batch_is_the_largest_that_fits_and_all_are_even(
    limited: str, train: Trainings, capsys: Any, share: int, fits: int, micro: int, accumulation: int
) -> None:
    options = ("--task", limited, "--steps", "3", "--global-batch", str(share))
    found = train(*options, "--micro-batch", "auto", JOB_FITS=str(fits))
    told = next(entry for entry in records(train.rank_dir) if "micro_batch" in entry)
    assert (told["micro_batch"], told["accumulation"], told["global_batch"]) == (micro, accumulation, share)
    assert f"--micro-batch auto: {micro}; " in capsys.readouterr().out
    # As if nothing had been tried: weights, dropout and the order of the samples.
    given = train(
        *options, "--micro-batch", str(micro), "--checkpoint-dir", str(train.folder / "b"), JOB_FITS=str(fits)
    )
    assert given == found


def test_a_model_too_large_for_one_sample_is_told_what_saves_memory(limited: str, train: Trainings) -> None:
    with pytest.raises(UsageError, match=r"not even one sample at a time fits.*--activation-checkpointing"):
        train("--task", limited, "--micro-batch", "auto", "--global-batch", "8", JOB_FITS="0")


def test_what_fits_only_just_does_not_count(
    limited: str, train: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = [0]
    step = fitting.Trial.step
    monkeypatch.setattr(fitting.Trial, "step", lambda self, size: (sizes.append(size), step(self, size))[1])
    monkeypatch.setattr(fitting, "memory_of", lambda _: Meter(usable=100 + 10 * 7, sizes=sizes))
    train("--task", limited, "--steps", "1", "--micro-batch", "auto", "--global-batch", "32")
    assert sizes[1:] == [1, 2, 4, 8]
    told = next(entry for entry in records(train.rank_dir) if "micro_batch" in entry)
    assert told["micro_batch"] == 4


def resolved(
    rank: int, path: str, strategy: str, fits: list[int], usable: list[int]
) -> tuple[int, list[int]]:
    """The micro-batch that this rank found, and the sizes that it tried."""
    import os

    os.environ["JOB_FITS"] = str(fits[rank])
    size = torch.distributed.get_world_size()
    world = World(rank=rank, local_rank=rank, size=size, device=torch.device("cpu"), local_size=size)
    words = ("--task", path, "--strategy", strategy, "--micro-batch", "auto", "--global-batch", "64")
    cfg = parse(words)
    task = contract.load(path)
    sizes = task.loss.__globals__["SIZES"]
    fitting.memory_of = lambda _: Meter(usable=usable[rank], sizes=sizes)  # type: ignore[assignment]
    progress = Progress(Member(rank=rank, local_rank=rank, size=size))
    found = fitting.resolve(cfg, task, world, task.build_dataset(cfg, "train"), progress)
    return int(found.micro_batch), sizes


def test_ranks_agree_on_what_fits_everywhere(limited: str) -> None:
    plenty = [10**9] * 2
    assert together(2, resolved, limited, "ddp", [1000, 3], plenty) == [(2, [1, 2, 4]), (2, [1, 2, 4])]


def test_where_ranks_need_each_other_no_step_is_begun_that_one_has_no_memory_for(limited: str) -> None:
    # A step of 8 takes 180, of 16 it would take 260: the second rank has 200, and a step of 16 would raise.
    tried = together(2, resolved, limited, "fsdp", [8, 8], [10**9, 200])
    assert tried == [(8, [1, 2, 4, 8]), (8, [1, 2, 4, 8])]


def test_what_is_expected_after_one_try_leaves_nothing_out() -> None:
    trial = object.__new__(fitting.Together)
    trial.peaks, trial.resting = {}, 50
    assert trial.expected(1) == 0
    trial.peaks = {1: 110}
    assert trial.expected(2) == 170  # all but what rests may grow
    trial.peaks = {1: 110, 2: 120}
    assert trial.expected(4) == 140


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "needs --global-batch"),
        (("--global-batch", "64", "--accumulation", "2"), "leave --accumulation out"),
        (("--global-batch", "64", "--strategy", "pp"), "not there under --strategy pp, only under ddp, "),
    ],
)
def test_what_it_does_not_go_with(options: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        strategies.check(parse(["--micro-batch", "auto", *options]))


def test_on_a_cpu_a_number_has_to_be_given(train: Trainings) -> None:
    with pytest.raises(UsageError, match=r"found by trying on a GPU, and this is a CPU: give a number"):
        train("--task", job("ragged"), "--micro-batch", "auto", "--global-batch", "8")

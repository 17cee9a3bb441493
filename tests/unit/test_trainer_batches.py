"""Who takes which sample: the arithmetic of batches, the shuffle, and the processes that prepare them."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training import Trainings, job

from trainer import contract, strategies
from trainer.batches import BatchPlan, MicroBatches, Order, step_seed
from trainer.config import Config, parse
from trainer.data import Feed
from trainer.errors import UsageError, WorkerError


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_every_epoch_holds_every_sample_once(length: int, seed: int, epoch: int) -> None:
    order = Order(length, seed)
    assert sorted(order[epoch * length + place] for place in range(length)) == list(range(length))


def test_epochs_and_seeds_differ_and_the_order_is_pinned() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        order = Order(1000, seed)
        return [order[number * 1000 + place] for place in range(1000)]

    orders = [epoch(0, 0), epoch(0, 1), epoch(1, 0), list(range(1000))]
    for one, other in itertools.combinations(orders, 2):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 20
    # A checkpoint of one version of the trainer must go on in the same order under the next.
    assert epoch(0, 0)[:8] == [79, 306, 392, 402, 957, 811, 597, 211]


def test_the_shuffle_has_no_pattern() -> None:
    length = 10_007
    order = Order(length, 3)
    indices = [order[place] for place in range(length)]
    rising = sum(a < b for a, b in itertools.pairwise(indices))
    assert abs(rising - length / 2) < 4 * (length / 12) ** 0.5
    early = sum(index < length // 2 for index in indices[: length // 2])
    assert abs(early - length / 4) < 4 * (length / 16) ** 0.5
    steps = [(b - a) % length for a, b in itertools.pairwise(indices)]
    assert len(set(steps)) > 0.6 * length


def test_the_order_does_not_depend_on_the_number_of_ranks() -> None:
    def taken(ranks: int, steps: int, start: int = 0) -> list[list[int]]:
        """The samples of each step, in order, all ranks together."""
        cfg = Config(global_batch=24, micro_batch=5)
        plan = BatchPlan.derive(cfg, ranks)
        feeds = [
            iter(MicroBatches(plan, length=101, seed=9, rank=rank, start=start)) for rank in range(ranks)
        ]
        return [
            [index for feed in feeds for _ in range(plan.accumulation) for index in next(feed)]
            for _ in range(steps)
        ]

    whole = taken(1, 12)
    assert taken(2, 12) == taken(4, 12) == taken(8, 12) == whole
    assert taken(3, 7, start=5 * 24) == whole[5:]
    assert sorted(itertools.chain.from_iterable(whole))[:3] == [0, 0, 0]  # 288 samples of 101: epochs run on


@pytest.mark.parametrize(
    ("options", "ranks", "plan"),
    [
        ({"micro_batch": 8}, 2, (16, 8, 1)),
        ({"micro_batch": 8, "accumulation": 3}, 2, (48, 8, 3)),
        ({"micro_batch": 8, "global_batch": 64}, 2, (64, 8, 4)),
        ({"micro_batch": 8, "global_batch": 64, "accumulation": 4}, 2, (64, 8, 4)),
        ({"micro_batch": 8, "global_batch": 10}, 2, (10, 8, 1)),
        ({"micro_batch": 2, "global_batch": 10}, 2, (10, 2, 3)),
    ],
)
def test_what_the_options_leave_open_is_derived(
    options: dict[str, int], ranks: int, plan: tuple[int, int, int]
) -> None:
    derived = BatchPlan.derive(Config(**options), ranks)
    assert (derived.global_batch, derived.micro_batch, derived.accumulation) == plan
    sizes = [
        len(batch) for batch in itertools.islice(MicroBatches(derived, length=99, seed=0, rank=0, start=0), 6)
    ]
    assert sum(sizes[: derived.accumulation]) == derived.share
    assert max(sizes) <= derived.micro_batch


def test_a_pipeline_gets_a_micro_batch_for_each_stage_unless_told_otherwise() -> None:
    assert BatchPlan.derive(Config(micro_batch=8), 1, 4).accumulation == 4
    assert BatchPlan.derive(Config(micro_batch=8, accumulation=5), 1, 4).accumulation == 5
    assert BatchPlan.derive(Config(micro_batch=8, global_batch=64), 1, 4).accumulation == 8


def test_batches_that_do_not_work_out_are_refused_with_what_would() -> None:
    with pytest.raises(
        UsageError, match=r"--global-batch 10 cannot be shared equally by 4 ranks: use 8 or 12"
    ):
        BatchPlan.derive(Config(global_batch=10), 4)
    with pytest.raises(UsageError, match=r"use 4$"):
        BatchPlan.derive(Config(global_batch=3), 4)
    with pytest.raises(UsageError, match="is 64 samples, which takes 8 micro-batches of 8; leave one"):
        BatchPlan.derive(Config(micro_batch=8, global_batch=64, accumulation=4), 1)
    with pytest.raises(UsageError, match="32 samples for each of 2 ranks, which takes 4 micro-batches of 8"):
        BatchPlan.derive(Config(global_batch=64, micro_batch=8, accumulation=3), 2)


def test_every_rank_and_step_draws_other_random_numbers() -> None:
    seeds = {step_seed(seed, step, rank) for seed in range(3) for step in range(50) for rank in range(8)}
    assert len(seeds) == 3 * 50 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)


# --- processes that prepare data ---------------------------------------------------------------------------


def feed(*options: str) -> Any:
    cfg = parse(["--task", job("stack"), "--micro-batch", "4", *options])
    task = contract.load(cfg.task)
    plan = BatchPlan.derive(cfg, 1)
    return Feed(task.build_dataset(cfg, "train"), task, cfg, plan, torch.device("cpu"), 0, 0)


def test_workers_prepare_as_many_batches_as_asked() -> None:
    ahead = feed("--workers", "1", "--prefetch", "5")
    assert ahead._batches._prefetch_factor == 5
    plain = feed()
    for ours, theirs in zip(ahead.step(), plain.step(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_preparing_ahead_without_processes_that_do_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--prefetch is for processes .* raise --workers"):
        strategies.check(parse(["--prefetch", "4"]))
    strategies.check(parse(["--prefetch", "4", "--workers", "1"]))


DYING = """
import os
import signal
import torch
from torch.utils.data import get_worker_info

class Samples:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(4), torch.ones(1)

def build_model(cfg):
    return torch.nn.Linear(4, 1)

def build_dataset(cfg, split):
    return Samples()

def loss(output, batch):
    return (output - batch[1]).square().sum(), len(output)
"""


def test_a_worker_that_dies_is_named_with_what_may_have_ended_it(train: Trainings, tmp_path: Path) -> None:
    path = tmp_path / "dying.py"
    path.write_text(DYING)
    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        train("--task", str(path), "--steps", "3", "--workers", "1")
    assert re.match(
        r"DataLoader worker \(pid(\(s\))? \d+\) .*; lower --workers or --prefetch$", str(caught.value)
    )
    assert time.monotonic() - began < 30

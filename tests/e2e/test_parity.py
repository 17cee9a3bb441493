"""Every strategy learns what one process learns: the same losses, however the ranks share the work.

The ranks are processes with gloo between them; what torchrun would add is tested with ddp.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from parity import BATCHES, QUICK, RAGGED, STEPS, WHOLE, train, worst
from ranks import together
from training import job, records, reference

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

WAYS = [
    ("fsdp", 2, ()),
    ("fsdp", 4, ("--reshard-after-forward", "no")),
    ("fsdp", 4, ("--reshard-after-forward", "yes")),
    ("hsdp", 4, ()),
    ("tp", 2, ()),
    ("tp", 4, ()),
    ("fsdp+tp", 4, ()),
    ("dp", 1, ()),
]
PIPELINES = [("gpipe", 2), ("1f1b", 4), ("interleaved", 2)]
CHAINS = {
    "1": [("ddp", 1), ("fsdp", 2), ("pp", 4), ("tp", 2)],
    "2": [("hsdp", 4), ("ddp", 2), ("fsdp", 1), ("fsdp+tp", 4)],
    "3": [("tp", 4), ("dp", 1), ("fsdp", 4), ("pp", 2)],
    "4": [("pp", 2), ("fsdp+tp", 4), ("hsdp", 4), ("ddp", 1)],
}


@pytest.fixture(scope="module")
def expected() -> Any:
    """The losses of the plainest loop, by the name of the batch."""
    return {
        name: reference(job("stack"), *QUICK, *options, global_batch=size)
        for name, (options, size) in BATCHES.items()
    }


@pytest.mark.parametrize(
    ("strategy", "ranks", "more", "batch"),
    [(*way, RAGGED) for way in WAYS] + [("fsdp", 2, (), WHOLE), ("tp", 2, (), WHOLE)],
    ids=str,
)
def test_the_losses_are_those_of_one_process(
    strategy: str, ranks: int, more: tuple[str, ...], batch: str, expected: Any, tmp_path: Path
) -> None:
    options = ("--task", job("stack"), "--strategy", strategy, *more, *QUICK, *BATCHES[batch][0])
    curves = together(ranks, train, ranks, tmp_path, (*options, "--eval-every", "7"))
    assert worst(curves[0], expected[batch]) < 2e-4
    assert all(curve == curves[0] for curve in curves)
    assert curves[0][STEPS] < curves[0][1] - 0.2
    evaluated = [entry["eval_right"] for entry in records(tmp_path / "rank-0") if "eval_right" in entry]
    assert len(evaluated) == 2 and all(0 <= share <= 1 for share in evaluated)


@pytest.mark.parametrize(("schedule", "ranks"), PIPELINES)
def test_the_losses_of_a_pipeline_are_those_of_one_process(schedule: str, ranks: int, tmp_path: Path) -> None:
    batches = ("--global-batch", "12", "--micro-batch", "3", "--grad-clip", "0.3")
    options = ("--task", job("stack"), *QUICK, *batches)
    more = ("--strategy", "pp", "--pipeline-schedule", schedule, "--eval-every", "7")
    curves = together(ranks, train, ranks, tmp_path, (*options, *more))
    assert worst(curves[0], reference(job("stack"), *options, global_batch=12)) < 2e-4
    assert all(curve == curves[0] for curve in curves)


@pytest.mark.parametrize("chain", CHAINS)
def test_each_goes_on_from_the_checkpoint_of_another(chain: str, tmp_path: Path) -> None:
    """Two steps under each strategy in turn, on 1, 2 and 4 ranks: together the curve of one process."""
    every = 2
    options = ("--task", job("stack"), "--steps", str(every * len(CHAINS[chain])), "--warmup-steps", "2")
    options += ("--learning-rate", "0.01", "--log-every", "1", "--global-batch", "12", "--micro-batch", "3")
    expected = reference(job("stack"), *options, global_batch=12)
    run: dict[int, float] = {}
    for strategy, ranks in CHAINS[chain]:
        more = ("--strategy", strategy, "--checkpoint-dir", str(tmp_path / "checkpoints"))
        curve = together(ranks, train, ranks, tmp_path, (*options, *more), every)[0]
        assert list(curve) == [len(run) + 1, len(run) + 2]
        run |= curve
        assert worst(curve, {step: expected[step] for step in curve}) < 1e-5, (strategy, ranks)
    assert run.keys() == expected.keys()

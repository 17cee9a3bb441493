"""Compiling the model: what is compiled, how often, under which strategies, and what has to be there.

Most tests stop short of making kernels, which takes a minute: torch still traces the model, and runs what it
has traced operation by operation.
"""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import together
from training import Trainings, job, records

from trainer import compiling, contract, strategies
from trainer.config import parse
from trainer.errors import UsageError
from trainer.world import World

# torch warns about itself while it traces.
pytestmark = pytest.mark.filterwarnings("ignore")

ON = ("--compile", "yes")
CPU = torch.device("cpu")
STEPS = 3


def traced_only() -> None:
    """Let torch.compile trace, and leave out what takes long."""
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    compiling.compiled.cache_clear()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`traced_only`, undone at the end; gives torch's counters."""
    config: Any = torch._dynamo.config
    before = (config.recompile_limit, config.optimize_ddp)
    monkeypatch.setattr(torch, "compile", torch.compile)
    traced_only()
    yield torch._dynamo.utils.counters
    config.recompile_limit, config.optimize_ddp = before
    compiling.compiled.cache_clear()
    torch._dynamo.reset()


def test_blocks_are_compiled_once_for_all_and_again_for_another_size_only(
    train: Trainings, tracing: Any
) -> None:
    # 10 samples in micro-batches of 4, 4 and 2.
    options = ("--task", job("stack"), "--steps", "4", "--micro-batch", "4", "--global-batch", "10")
    evaluating = ("--eval-every", "2", "--eval-batches", "2")
    plain = train(*options, *evaluating, "--checkpoint-dir", str(train.folder / "a"))
    ours = train(*options, *evaluating, *ON)
    assert ours == pytest.approx(plain, abs=1e-5)
    # For 4 samples, for any number, and for an evaluation.
    assert tracing["stats"]["unique_graphs"] <= 4
    assert not tracing["graph_break"]
    phases = [entry["phase"] for entry in records(train.rank_dir)]
    assert phases[:4] == ["init", "init", "compile", "train"]


def test_a_checkpoint_with_is_one_without(train: Trainings, tracing: Any) -> None:
    options = ("--task", job("stack"), "--micro-batch", "4", "--warmup-steps", "50", "--steps")
    whole = train(*options, "6", "--checkpoint-dir", str(train.folder / "whole"))
    train(*options, "3", *ON)
    assert tracing["stats"]["unique_graphs"] == 1
    rest = train(*options, "6")
    assert rest == pytest.approx({step: whole[step] for step in (4, 5, 6)}, abs=1e-5)


def test_a_model_without_blocks_is_compiled_whole(train: Trainings, tracing: Any) -> None:
    options = ("--task", job("ragged"), "--steps", "3", "--micro-batch", "4")
    plain = train(*options, "--checkpoint-dir", str(train.folder / "a"))
    assert train(*options, *ON) == pytest.approx(plain, abs=1e-5)
    assert tracing["stats"]["unique_graphs"] == 1


def test_a_job_whose_forward_goes_around_its_model_is_told(
    train: Trainings, tracing: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "around.py"
    around = "\n\ndef forward(model, batch):\n    return model[0].linear(batch[0])\n"
    path.write_text(NUMBERED.replace("range(12)", "range(1)") + around)
    train("--task", str(path), "--steps", "2", "--micro-batch", "4", *ON)
    assert capsys.readouterr().out.count("had nothing to compile") == 1
    assert not tracing["stats"]["unique_graphs"]


NUMBERED = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.linear = number, nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(x) / (1 + self.number)

def build_model(cfg):
    return nn.Sequential(*map(Layer, range(12)))

def build_dataset(cfg, split):
    return [(torch.full((4,), n / 9), torch.ones(4)) for n in range(9)]

def loss(output, batch):
    return (output - batch[1]).square().sum(), len(output)
"""


def test_blocks_that_know_their_number_are_all_compiled(
    train: Trainings, tracing: Any, tmp_path: Path
) -> None:
    path = tmp_path / "numbered.py"
    path.write_text(NUMBERED)
    train("--task", str(path), "--steps", "1", "--micro-batch", "4", *ON)
    assert tracing["stats"]["unique_graphs"] == 12  # torch's own limit is 8


def test_both_savings_together(train: Trainings, tracing: Any) -> None:
    options = ("--task", job("stack"), "--steps", "3", "--micro-batch", "4")
    plain = train(*options, "--checkpoint-dir", str(train.folder / "a"))
    assert train(*options, *ON, "--activation-checkpointing", "yes") == pytest.approx(plain, abs=1e-5)
    assert not tracing["graph_break"]


def test_what_is_missing_is_said_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiling.check(CPU)
    with pytest.raises(UsageError, match=r"needs the package triton.*pip install triton"):
        compiling.check(torch.device("cuda", 0))
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        with pytest.raises(
            UsageError, match=r"needs a C\+\+ compiler, and there is no no-such-compiler here"
        ):
            compiling.check(CPU)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(UsageError, match=r"needs Python's headers.*apt install python3-dev"):
        compiling.check(CPU)


def test_the_strategy_whose_copies_change_in_each_step_refuses_it() -> None:
    with pytest.raises(
        UsageError, match=r"--compile means nothing under --strategy dp, only under ddp, fsdp"
    ):
        strategies.check(parse(["--strategy", "dp", *ON]))


def _losses(strategy: str, rank: int, *options: str) -> list[float]:
    """Of some steps under `strategy`, whose last micro-batch is smaller where the strategy allows that."""
    words = ("--micro-batch", "3", "--learning-rate", "0.01", *options)
    cfg = parse(["--task", job("stack"), "--strategy", strategy, *words])
    task = contract.load(cfg.task)
    size = torch.distributed.get_world_size()
    world = World(rank=rank, local_rank=rank, size=size, device=CPU, local_size=size)
    dataset = task.build_dataset(cfg, "train")
    torch.manual_seed(0)
    ours = strategies.find(strategy)(task, cfg, world, 2, dataset)
    sizes = (3, 3) if strategy == "pp" else (3, 2)
    result, at = [], 10 * ours.layout.data_rank
    for _ in range(STEPS):
        batches = []
        for count in sizes:
            samples = [dataset[(at + number) % len(dataset)] for number in range(count)]
            batches.append(torch.utils.data.default_collate(samples))
            at += count
        totals = ours.accumulate(batches, torch.zeros(()))
        ours.finish_gradients(totals[1])
        ours.apply(None)
        result.append(float(totals[0] / totals[1]))
    return result


def _both(rank: int, strategy: str, kernels: bool, *options: str) -> tuple[list[float], list[float], int]:
    """The losses without and with compiling, and how many graphs were compiled."""
    if not kernels:
        traced_only()
    plain = _losses(strategy, rank)
    ours = _losses(strategy, rank, *ON, *options)
    return plain, ours, torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ("ddp", 2),
        ("fsdp", 2),
        pytest.param("tp", 2, marks=pytest.mark.slow),
        pytest.param("pp", 2, marks=pytest.mark.slow),
        pytest.param("fsdp+tp", 4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(200)
def test_losses_are_the_same_under_every_strategy(strategy: str, ranks: int) -> None:
    saving = ("--activation-checkpointing", "yes")
    plain, ours, graphs = together(ranks, _both, strategy, False, *saving, deadline=180)[0]
    assert ours == pytest.approx(plain, abs=1e-5)
    assert 1 <= graphs <= 4


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_kernels_compute_what_torch_does(strategy: str) -> None:
    plain, ours, _ = together(2, _both, strategy, True, deadline=380)[0]
    assert ours == pytest.approx(plain, abs=2e-4)

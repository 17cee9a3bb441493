"""Activations that are computed twice: the same training, in less memory, under the same names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import together
from training import Trainings, job

from trainer import activations, contract, strategies
from trainer.config import parse
from trainer.errors import JobError
from trainer.world import World

ON = ("--activation-checkpointing", "yes")
STEPS = 3

JOB = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 64), nn.Linear(64, 8), nn.Dropout(0.5)

    def forward(self, x):
        return x + self.down(self.drop(torch.tanh(self.up(x))))

def build_model(cfg):
    return nn.Sequential(*(Layer() for _ in range(6)))

def build_dataset(cfg, split):
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    return list(zip(x, x.flip(1), strict=True))

def loss(output, batch):
    return torch.nn.functional.mse_loss(output, batch[1], reduction="sum"), output.numel()
"""


@pytest.fixture
def dropping(tmp_path: Path) -> str:
    """A job whose blocks have dropout."""
    path = tmp_path / "dropping.py"
    path.write_text(JOB)
    return str(path)


def one() -> World:
    return World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))


def test_losses_are_bit_for_bit_those_without_dropout_included(train: Trainings, dropping: str) -> None:
    options = ("--task", dropping, "--steps", "6", "--micro-batch", "4", "--accumulation", "2")
    plain = train(*options, "--checkpoint-dir", str(train.folder / "a"))
    again = train(*options, "--checkpoint-dir", str(train.folder / "b"), *ON)
    assert again == plain


def test_a_checkpoint_with_is_one_without(train: Trainings, dropping: str) -> None:
    # While the learning rate rises it does not depend on the number of steps.
    options = ("--task", dropping, "--micro-batch", "4", "--warmup-steps", "50", "--steps")
    whole = train(*options, "6", "--checkpoint-dir", str(train.folder / "whole"))
    train(*options, "3", *ON)
    assert train(*options, "6") == {step: whole[step] for step in (4, 5, 6)}


def kept(model: Any, batch: torch.Tensor) -> int:
    """Bytes that a forward pass keeps for the backward pass, parameters not counted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(batch)
    output.sum().backward()
    return sum(storages.values())


def test_less_is_kept_between_forward_and_backward(dropping: str) -> None:
    task = contract.load(dropping)
    batch = torch.randn(32, 8)
    plain, again = task.build_model(None), task.build_model(None)
    activations.recompute_blocks(again, task)
    assert list(again.state_dict()) == list(plain.state_dict())
    assert [type(layer).__name__ for layer in again] == ["Layer"] * 6
    assert type(again[0]) is type(again[5])
    # Inputs of blocks are saved by checkpoint itself, outside of the hooks: six times 32 x 8 numbers.
    assert kept(again, batch) + 6 * 4 * 32 * 8 < 0.2 * kept(plain, batch)


def test_nothing_is_computed_twice_where_nothing_is_learned(dropping: str) -> None:
    task = contract.load(dropping)
    model = task.build_model(None)
    activations.recompute_blocks(model, task)
    calls = []
    model[0].up.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    with torch.no_grad():
        model(torch.randn(2, 8))
    assert calls == [False]
    model(torch.randn(2, 8)).sum().backward()
    assert calls == [False, True, True]


def test_a_model_without_blocks_is_refused_with_the_way_to_name_them(train: Trainings) -> None:
    with pytest.raises(JobError, match=r'no repeated blocks were found; name them .* BLOCKS = \["layers"\]'):
        train("--task", job("ragged"), "--steps", "1", *ON)


def test_a_forward_put_on_from_outside_is_refused(dropping: str) -> None:
    task = contract.load(dropping)
    model = task.build_model(None)
    model[3].forward = lambda x: x
    with pytest.raises(JobError, match="3 has a forward that was put onto it from outside"):
        activations.recompute_blocks(model, task)


def _losses(rank: int, strategy: str, options: tuple[str, ...]) -> list[float]:
    """Of some steps under `strategy`, with ragged micro-batches where the strategy takes them."""
    cfg = parse(["--task", job("stack"), "--strategy", strategy, *options])
    task = contract.load(cfg.task)
    size = torch.distributed.get_world_size()
    world = World(rank=rank, local_rank=rank, size=size, device=torch.device("cpu"), local_size=size)
    dataset = task.build_dataset(cfg, "train")
    torch.manual_seed(0)
    kind = strategies.find(strategy)
    strategy_ = kind(task, cfg, world, 2, dataset)
    sizes = (3, 3) if strategy == "pp" else (3, 2)
    result = []
    for step in range(STEPS):
        start = (step * 2 + strategy_.layout.data_rank) * sum(sizes)
        batches, at = [], start
        for count in sizes:
            samples = [dataset[(at + n) % len(dataset)] for n in range(count)]
            batches.append(torch.utils.data.default_collate(samples))
            at += count
        totals = strategy_.accumulate(batches, torch.zeros(()))
        strategy_.finish_gradients(totals[1])
        strategy_.apply(None)
        result.append(float(totals[0] / totals[1]))
    return result


@pytest.mark.parametrize(
    ("strategy", "ranks"), [("ddp", 2), ("fsdp", 2), ("tp", 2), ("pp", 2), ("fsdp+tp", 4)]
)
def test_losses_are_the_same_under_every_strategy(strategy: str, ranks: int) -> None:
    options = ("--micro-batch", "3", "--learning-rate", "0.01")
    plain, again = (together(ranks, _losses, strategy, (*options, *more)) for more in ((), ON))
    assert len(set(map(tuple, again))) == 1
    assert again[0] == pytest.approx(plain[0], abs=1e-6)

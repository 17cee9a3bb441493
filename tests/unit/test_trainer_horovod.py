"""The strategy horovod without Horovod: over one that is made of torch's own messages, and without any."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from parity import BATCHES, QUICK, RAGGED, WHOLE, train, worst
from ranks import together
from training import Trainings, job, losses, reference

from trainer.errors import UsageError

pytestmark = pytest.mark.torch


def pretended() -> types.ModuleType:
    """What stands in for `horovod.torch`: its functions as the strategy calls them."""
    import torch.distributed as dist

    waiting: dict[str, tuple[Any, str]] = {}

    def allreduce_async_(tensor: Any, name: str, op: str) -> str:
        assert tensor.is_contiguous()
        assert name not in waiting, "a name may be under way once at a time"
        waiting[name] = (tensor, op)
        return name

    def synchronize(_name: str) -> None:
        for name in sorted(waiting):  # ranks may have them in different orders, which torch does not sort out
            tensor, op = waiting.pop(name)
            if op == "average":
                tensor.div_(dist.get_world_size())
            dist.all_reduce(tensor)

    def allreduce(tensor: Any, name: str, op: str) -> Any:
        result = tensor.clone()
        synchronize(allreduce_async_(result, name, op))
        return result

    module = types.ModuleType("horovod.torch")
    module.__dict__.update(
        init=lambda: None,
        rank=dist.get_rank,
        size=dist.get_world_size,
        allreduce=allreduce,
        allreduce_async_=allreduce_async_,
        synchronize=synchronize,
        Sum="sum",
        Average="average",
    )
    return module


def with_pretended(rank: int, ranks: int, folder: Path, options: tuple[str, ...]) -> dict[int, float]:
    """Train on this rank."""
    sys.modules["horovod"] = types.ModuleType("horovod")
    sys.modules["horovod.torch"] = pretended()
    return train(rank, ranks, folder, ("--strategy", "horovod", *options))


@pytest.mark.parametrize(("ranks", "batch"), [(2, RAGGED), (2, WHOLE), (4, RAGGED)])
def test_the_losses_are_those_of_one_process(ranks: int, batch: str, tmp_path: Path) -> None:
    options, size = BATCHES[batch]
    words = ("--task", job("stack"), *QUICK, *options)
    curves = together(ranks, with_pretended, ranks, tmp_path, words)
    assert worst(curves[0], reference(job("stack"), *QUICK, *options, global_batch=size)) < 2e-4
    assert all(curve == curves[0] for curve in curves)


def test_gradients_in_half_the_bytes(tmp_path: Path) -> None:
    options, size = BATCHES[RAGGED]
    words = ("--task", job("stack"), *QUICK, *options, "--gradient-compression", "fp16")
    curves = together(2, with_pretended, 2, tmp_path, words)
    difference = worst(curves[0], reference(job("stack"), *QUICK, *options, global_batch=size))
    assert 0 < difference < 2e-2
    assert curves[1] == curves[0]


UNUSED = """
import torch

class Choice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.odd, self.never = (torch.nn.Linear(4, 1) for _ in range(3))

    def forward(self, x):
        found = self.always(x[:, :4])
        return found + self.odd(x[:, :4]) if x[0, 4] > 0 else found

def build_model(cfg):
    return Choice()

def build_dataset(cfg, split):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(64, 5, generator=generator)
    return [(row, row[:4].sum().view(1)) for row in x]

def loss(output, batch):
    return (output - batch[1]).square().sum(), len(output)
"""


def with_weights(rank: int, ranks: int, folder: Path, options: tuple[str, ...], strategy: str) -> list[float]:
    """Train, and return the weights of what no batch and what some batches use."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    if strategy == "horovod":
        with_pretended(rank, ranks, folder, options)
    else:
        train(rank, ranks, folder, ("--strategy", strategy, *options))
    newest = max((folder / f"of-{strategy}").glob("step-*"), key=lambda path: int(path.name[5:]))
    state = _load_state_dict_from_keys(storage_reader=FileSystemReader(newest))
    weights = state["model"]
    return [float(weights[name].double().sum()) for name in sorted(weights) if torch.is_tensor(weights[name])]


def test_what_no_rank_uses_does_not_decay(tmp_path: Path) -> None:
    path = tmp_path / "unused.py"
    path.write_text(UNUSED)
    words = (
        "--task",
        str(path),
        "--steps",
        "6",
        "--global-batch",
        "8",
        "--micro-batch",
        "2",
        "--log-every",
        "1",
    )
    words += ("--weight-decay", "0.5", "--learning-rate", "0.1", "--warmup-steps", "0")
    found = {}
    for strategy in ("horovod", "ddp"):
        there = ("--checkpoint-dir", str(tmp_path / f"of-{strategy}"))
        found[strategy] = together(2, with_weights, 2, tmp_path, (*words, *there), strategy)[0]
    assert found["horovod"] == pytest.approx(found["ddp"], abs=1e-5)


def test_without_horovod_it_says_how_to_get_it(train: Trainings) -> None:
    with pytest.raises(
        UsageError, match="has no Horovod; build it with `encamp env build horovod --on HOST`"
    ):
        train("--task", job("stack"), "--strategy", "horovod", "--steps", "1")


def test_a_horovod_of_another_torch_is_told_apart(train: Trainings, tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").touch()
    (tmp_path / "horovod" / "torch.py").write_text("raise ImportError('undefined symbol: _ZN3c10')\n")
    train.monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("horovod", "horovod.torch"):
        train.monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(UsageError, match=r"does not fit torch .*undefined symbol"):
        train("--task", job("stack"), "--strategy", "horovod", "--steps", "1")


def test_ranks_that_horovod_does_not_see_are_refused(train: Trainings) -> None:
    other = types.ModuleType("horovod.torch")
    other.__dict__.update(init=lambda: None, rank=lambda: 1, size=lambda: 2)
    train.monkeypatch.setitem(sys.modules, "horovod", types.ModuleType("horovod"))
    train.monkeypatch.setitem(sys.modules, "horovod.torch", other)
    with pytest.raises(UsageError, match="to Horovod this is rank 1 of 2, and to torch it is 0 of 1"):
        train("--task", job("stack"), "--strategy", "horovod", "--steps", "1")


def test_what_horovod_cannot_compress_is_refused(train: Trainings) -> None:
    with pytest.raises(UsageError, match="--gradient-compression bf16 is not there under --strategy horovod"):
        train(
            *("--task", job("stack"), "--strategy", "horovod", "--steps", "1"),
            *("--gradient-compression", "bf16"),
        )
    assert losses(train.rank_dir) == {}

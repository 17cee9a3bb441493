"""ZeRO's edges: what it refuses, what it tells DeepSpeed, and what reaches whom besides gradients."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
import torch
from ranks import together
from torch import nn
from training import job

from trainer import contract, strategies
from trainer.config import parse
from trainer.errors import JobError, UsageError
from trainer.strategies import zero_engine, zero_state
from trainer.world import World

CPU = torch.device("cpu")
ONE = World(rank=0, local_rank=0, size=1, device=CPU)


def test_without_deepspeed_the_line_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none)
    with pytest.raises(
        UsageError, match=r"--strategy zero2 needs DeepSpeed, .* has none: pip install 'deepspeed>=0\.19\.5'"
    ):
        zero_engine.load("zero2", CPU)


@pytest.mark.parametrize("version", ["0.19.4", "0.9.10", "0.18.10+abc"])
def test_one_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(UsageError) as caught:
        zero_engine.load("zero3", CPU)
    assert "--strategy zero3 needs DeepSpeed 0.19.5 or newer" in str(caught.value)
    assert version in str(caught.value)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.Adagrad, torch.optim.Adafactor])
def test_an_optimizer_that_looks_at_whole_parameters_is_refused(kind: Any) -> None:
    with pytest.raises(JobError) as caught:
        zero_engine.refuse_optimizer(kind(nn.Linear(2, 2).parameters()), "jobs/a.py", "zero1")
    assert f"{kind.__name__} is not known to treat each number by itself; use ddp or fsdp" in str(
        caught.value
    )


def test_one_that_derives_from_a_known_one_is_taken() -> None:
    class Mine(torch.optim.AdamW):
        pass

    zero_engine.refuse_optimizer(Mine(nn.Linear(2, 2).parameters()), "jobs/a.py", "zero1")


def test_weights_in_another_type_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(JobError, match=r"1\.weight is torch\.float64; build the model in float32"):
        zero_engine.refuse_other_types(model, "jobs/a.py", "zero3")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--strategy", "ddp", "--offload", "cpu"), "--offload means nothing under --strategy ddp"),
        (("--strategy", "zero2", "--shard-ranks", "2"), "--shard-ranks means nothing under --strategy zero2"),
        (("--strategy", "zero3", "--tensor-parallel", "2"), "--tensor-parallel means nothing"),
        (("--strategy", "zero3", "--reshard-after-forward", "no"), "--reshard-after-forward means nothing"),
        (("--strategy", "zero1", "--gradient-compression", "fp16"), "--gradient-compression means nothing"),
        (("--strategy", "zero4"), "did you mean zero"),
    ],
)
def test_options_without_a_meaning_are_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        strategies.check(parse([*words]))


def test_what_deepspeed_is_told() -> None:
    cfg = parse(["--strategy", "zero3", "--bucket-mb", "4", "--grad-clip", "1", "--micro-batch", "3"])
    told = zero_engine.options(cfg, ONE, 3, 5, 2_000_000)
    assert told["gradient_clipping"] == 0  # that is done before it
    assert told["gradient_accumulation_steps"] == 5
    assert told["train_micro_batch_size_per_gpu"] == 3
    assert told["zero_optimization"]["reduce_bucket_size"] == 2**20
    assert told["zero_optimization"]["stage3_param_persistence_threshold"] == 20_000
    assert "offload_optimizer" not in told["zero_optimization"]
    cfg = parse(["--strategy", "zero1", "--offload", "cpu"])
    told = zero_engine.options(cfg, ONE, 1, 1, 10)
    assert told["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": False}


def test_the_ranks_write_about_as_much_each() -> None:
    shapes = {f"p{number}": torch.Size((number % 5 + 1, 7)) for number in range(40)}
    owners = zero_state._owners(shapes, 4)
    loads = [sum(shapes[name].numel() for name in owners if owners[name] == rank) for rank in range(4)]
    assert owners.keys() == shapes.keys()
    assert max(loads) - min(loads) <= 35
    assert zero_state._owners(shapes, 4) == owners
    assert set(zero_state._owners({"only": torch.Size((3,))}, 4).values()) == {0}


def state_of(rank: int, strategy: str, path: str) -> dict[str, Any]:
    """What a rank would write after a step, and what is known of it."""
    cfg = parse(["--task", path, "--strategy", strategy])
    world = World(rank=rank, local_rank=rank, size=2, device=CPU, local_size=2)
    task = contract.load(path)
    torch.manual_seed(rank)
    built: Any = strategies.find(strategy)(task, cfg, world, 1)
    batch = torch.utils.data.default_collate(task.build_dataset(cfg, "train")[:4])
    totals = built.accumulate([batch], torch.tensor(float(rank)))
    built.finish_gradients(totals[1])
    built.apply(None)
    state, groups = built.state()
    moments = state["optimizer"]["state"]
    return {
        "names": sorted(state["model"]),
        "elsewhere": sorted(built.elsewhere),
        "bytes": sum(value.numel() for value in state["model"].values()),
        "shapes": {name: tuple(value.shape) for name, value in state["model"].items()},
        "moments": {name: sorted(entry) for name, entry in moments.items()},
        "steps": {float(entry["step"]) for entry in moments.values()},
        "asked": float(totals[2]),
        "replica": sorted(built.replica_ranks),
        "groups": groups,
        "skips": built.can_skip,
    }


@pytest.mark.torch
@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_each_rank_has_its_part_of_a_checkpoint_whole(strategy: str) -> None:
    first, second = together(2, state_of, strategy, job("stack"))
    whole = {
        name: tuple(value.shape)
        for name, value in contract.load(job("stack")).build_model(None).state_dict().items()
    }
    assert {**first["shapes"], **second["shapes"]} == whole
    assert first["names"] == second["elsewhere"] and second["names"] == first["elsewhere"]
    assert abs(first["bytes"] - second["bytes"]) < 0.1 * first["bytes"]
    for part in (first, second):
        assert part["moments"] == {name: ["exp_avg", "exp_avg_sq", "step"] for name in part["names"]}
        assert part["steps"] == {1.0}
        assert part["asked"] == 1
        assert part["replica"] == [0, 1]
        assert (part["groups"], part["skips"]) == ({}, False)

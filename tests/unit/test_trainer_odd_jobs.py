"""Jobs of an unusual make: each trains as it would anywhere, or is refused with what to change."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from ranks import together
from training import Trainings, records

from trainer import contract, strategies
from trainer.config import parse
from trainer.errors import CheckpointError, JobError
from trainer.loop import Loop
from trainer.strategies.tp import _refuse_tied, matched
from trainer.world import World

HEAD = """
import torch
from torch import nn
from torch.nn.functional import mse_loss

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def build_model(cfg):
    return Net()

def build_dataset(cfg, split):
    return [(torch.full((4,), i / 9), torch.ones(4)) for i in range(9)]

def loss(output, batch):
    return mse_loss(output.real.float(), batch[1], reduction="sum"), len(output)
"""

UNUSED = """
class Net(Net):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(3, 3)
        self.register_buffer("count", torch.ones(2))
"""


def write(folder: Path, more: str) -> str:
    path = folder / "job.py"
    path.write_text(HEAD + more)
    return str(path)


# --- checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_weights_that_no_step_has_used_are_in_checkpoints_and_training_resumes(
    train: Trainings, tmp_path: Path, strategy: str
) -> None:
    options = ("--task", write(tmp_path, UNUSED), "--strategy", strategy, "--checkpoint-every", "2")
    whole = train(*options, "--steps", "4")
    (train.checkpoints / "step-4" / "complete.json").unlink()
    assert train(*options, "--steps", "4") == {step: pytest.approx(whole[step]) for step in (3, 4)}


EXTRA = """
class Net(Net):
    seen = {"words": torch.zeros(2), "count": 0}
    def get_extra_state(self): return self.seen
    def set_extra_state(self, value):
        print("taken over:", value["count"])
        self.seen = value
    def forward(self, x):
        self.seen["count"] += 1
        return super().forward(x)
"""


def test_what_a_module_adds_to_its_state_may_be_a_dictionary(
    train: Trainings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("--task", write(tmp_path, EXTRA), "--steps", "2")
    train("--task", write(tmp_path, EXTRA), "--steps", "3")
    assert "taken over: 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("optimizer", "lacks"),
    [("SGD(model.parameters(), lr=1e-3)", "step"), ("RMSprop(model.parameters())", "exp_avg")],
)
def test_a_checkpoint_of_another_optimizer_is_told_as_such(
    train: Trainings, tmp_path: Path, optimizer: str, lacks: str
) -> None:
    more = f"def build_optimizer(model, cfg): return torch.optim.{optimizer}"
    train("--task", write(tmp_path, more), "--steps", "1")
    with pytest.raises(CheckpointError, match=rf"another optimizer: it has no {lacks} of layers\.0"):
        train("--task", write(tmp_path, ""), "--steps", "2")


# --- gradients and optimizers ------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gradients_of_weights_that_the_optimizer_was_not_given_do_not_pile_up(
    train: Trainings, tmp_path: Path, strategy: str
) -> None:
    more = """
def build_dataset(cfg, split): return [(torch.ones(4), torch.ones(4))]
def build_optimizer(model, cfg): return torch.optim.SGD(model.layers[0].parameters(), lr=0.0)
"""
    train("--task", write(tmp_path, more), "--strategy", strategy, "--steps", "3")
    first, *others = [entry["grad_norm"] for entry in records(train.rank_dir) if "grad_norm" in entry]
    assert others == [pytest.approx(first)] * 2


def test_an_optimizer_that_wants_the_loss_several_times(train: Trainings, tmp_path: Path) -> None:
    more = "def build_optimizer(model, cfg): return torch.optim.LBFGS(model.parameters())"
    with pytest.raises(JobError, match="LBFGS, which wants the loss several times a step"):
        train("--task", write(tmp_path, more), "--steps", "1")


def test_complex_weights(train: Trainings, tmp_path: Path) -> None:
    more = """
def build_model(cfg): return nn.Linear(4, 4, dtype=torch.complex64)
def forward(model, batch): return model(batch[0].to(torch.complex64))
"""
    losses = train("--task", write(tmp_path, more), "--steps", "9", "--learning-rate", "0.1")
    assert losses[9] < losses[1]


# --- what is sharded ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("self.scale = nn.Parameter(torch.tensor(1.0))", "scale is a single number without dimensions"),
        (
            "self.add_module('wide', nn.Linear(4, 4).double())",
            r"wide\.weight is torch\.float64, which --strategy fsdp cannot shard together",
        ),
    ],
)
def test_weights_that_cannot_be_sharded(train: Trainings, tmp_path: Path, more: str, said: str) -> None:
    more = f"""
class Net(Net):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        {more}
"""
    with pytest.raises(JobError, match=said):
        train("--task", write(tmp_path, more), "--strategy", "fsdp", "--steps", "1")


def test_weights_that_are_stored_in_another_order(train: Trainings, tmp_path: Path) -> None:
    more = """
class Net(Net):
    def __init__(self):
        super().__init__()
        for layer in self.layers:
            layer.weight = nn.Parameter(layer.weight.detach().t())
"""
    options = ("--task", write(tmp_path, more), "--steps", "3", "--micro-batch", "3")
    alone = train(*options, "--checkpoint-dir", str(tmp_path / "ddp"))
    sharded = train(*options, "--strategy", "fsdp", "--checkpoint-dir", str(tmp_path / "fsdp"))
    assert sharded == pytest.approx(alone)


def test_one_tensor_in_two_layers_that_ranks_would_share(tmp_path: Path) -> None:
    path = write(tmp_path, 'TP_PLAN = {"layers.*": "colwise"}')
    task = contract.load(path)
    model = task.build_model(None)
    model.layers.append(model.layers[0])  # one layer twice is one
    _refuse_tied(model, matched(model, task), task)
    model.layers[1].weight = model.layers[0].weight
    with pytest.raises(
        JobError, match=r"layers\.0\.weight and layers\.1\.weight are one tensor, and TP_PLAN"
    ):
        _refuse_tied(model, matched(model, task), task)


# --- pipelines ---------------------------------------------------------------------------------------------


def piped(rank: int, path: str) -> tuple[set[str], frozenset[str], float, str]:
    """What a rank of a pipeline has and leaves to others, its loss sum, and its word on longer batches."""
    task = contract.load(path)
    cfg = parse(["--task", path, "--strategy", "pp", "--micro-batch", "2"])
    torch.manual_seed(0)
    where = World(rank=rank, local_rank=0, size=2, device=torch.device("cpu"), local_size=2)
    dataset = task.build_dataset(cfg, "train")
    built = strategies.find("pp")(task, cfg, where, 2, dataset)
    batches = [torch.utils.data.default_collate(dataset[at : at + 2]) for at in (0, 2)]
    total = float(built.accumulate(batches, torch.zeros(()))[0])
    with pytest.raises(JobError) as refusal:
        built.accumulate([batches[0], torch.utils.data.default_collate(dataset[:3])], torch.zeros(()))
    return set(built.model.state_dict()), frozenset(built.elsewhere), total, str(refusal.value)


HANDED_ON = """
class Net(Net):
    def forward(self, x):
        x = x.to(self.layers[0].weight.dtype)[:, None].expand(-1, 4, -1)
        for layer in self.layers:
            x = layer(x).transpose(1, 2)
        return x.mean(1)
"""


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_pipeline_keeps_what_it_does_not_use_and_hands_on_any_tensor(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, f"{UNUSED}{HANDED_ON}\ndef build_model(cfg): return Net().to(torch.{kind})")
    task = contract.load(path)
    torch.manual_seed(0)
    whole = task.build_model(None)
    batch = torch.utils.data.default_collate(task.build_dataset(None, "train")[:4])
    expected = task.loss(whole(batch[0]), batch)[0].item()
    (first, not_first, total, said), (second, not_second, *_) = together(2, piped, path)
    assert {"unused.weight", "unused.bias", "count"} <= first
    assert first | second == set(whole.state_dict()) and not first & second
    assert (first, second) == (not_second, not_first)
    assert total == pytest.approx(expected, rel=1e-2 if kind == "bfloat16" else 1e-5)
    assert "inputs of one shape, and they are [(3, 4)] in one micro-batch and [(2, 4)] in another" in said


# --- evaluation --------------------------------------------------------------------------------------------


def test_an_evaluation_of_nothing_is_not_a_number(train: Trainings, tmp_path: Path) -> None:
    more = "def evaluate(output, batch): return {'none': (output.sum(), 0), 'one': (output[:1, :1], 1)}"
    train("--task", write(tmp_path, more), "--steps", "1", "--eval-every", "1")
    (found,) = [entry for entry in records(train.rank_dir) if "eval_none" in entry]
    assert found["eval_none"] == "nan" and math.isfinite(found["eval_one"])


@pytest.mark.parametrize("pair", ["(output, 4)", "('x', 4)", "(None, 4)"])
def test_what_is_evaluated_is_a_number(train: Trainings, tmp_path: Path, pair: str) -> None:
    more = f"def evaluate(output, batch): return {{'a': {pair}}}"
    with pytest.raises(JobError, match=r"evaluate.* must return sums and counts by name"):
        train("--task", write(tmp_path, more), "--steps", "1", "--eval-every", "1")


def agreed(rank: int, names: list[list[str]]) -> Any:
    loop = SimpleNamespace(world=SimpleNamespace(size=2), cfg=SimpleNamespace(task="job.py"))
    try:
        return Loop._agreed(cast("Any", loop), names[rank])
    except JobError as error:
        return str(error)


def test_ranks_add_up_what_has_the_same_name() -> None:
    assert together(2, agreed, [["loss", "a"], ["a", "loss"]]) == [["loss", "a"]] * 2
    for said in together(2, agreed, [["loss"], ["loss", "a"]]):
        assert said.startswith(
            "job job.py: evaluate(output, batch) returned 'a' on rank 1 and not on rank 0:"
        )


def test_complex_buffers_are_compared_whole() -> None:
    from trainer.strategies.agreement import _fingerprint

    one = torch.tensor([1 + 2j])
    assert not torch.equal(_fingerprint(one), _fingerprint(torch.tensor([1 + 3j])))

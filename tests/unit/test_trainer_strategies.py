"""What each strategy refuses, how it divides the ranks, and what the strategies are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import together
from torch import nn
from training import Trainings, job

from trainer import contract, places, strategies
from trainer.checkpoint import Checkpoints
from trainer.config import parse
from trainer.errors import JobError, UsageError
from trainer.folder import Position
from trainer.strategies import blocks
from trainer.strategies.layout import Layout
from trainer.strategies.tp import matched
from trainer.world import World

HEAD = """
import torch
from torch import nn
from torch.nn.functional import mse_loss

def build_dataset(cfg, split):
    return [(torch.full((4,), i / 9), torch.ones(4)) for i in range(9)]

def loss(output, batch):
    return mse_loss(output, batch[1], reduction="sum"), len(output)
"""


def write(folder: Path, text: str) -> str:
    path = folder / "job.py"
    path.write_text(HEAD + text)
    return str(path)


def world(ranks: int, rank: int = 0, local: int | None = None) -> World:
    return World(rank=rank, local_rank=0, size=ranks, device=torch.device("cpu"), local_size=local or ranks)


def divide(strategy: str, ranks: int, *options: str, rank: int = 0, local: int | None = None) -> Layout:
    return strategies.find(strategy).divide(
        parse(["--strategy", strategy, *options]), world(ranks, rank, local)
    )


# --- dividing the ranks ------------------------------------------------------------------------------------


def test_who_takes_samples_of_its_own_and_who_draws_alike() -> None:
    assert [divide("fsdp", 2, rank=r).data_rank for r in (0, 1)] == [0, 1]
    assert [divide("tp", 2, rank=r) for r in (0, 1)] == [Layout(data=1, data_rank=0, tensor=2)] * 2
    groups = [divide("fsdp+tp", 4, rank=r) for r in range(4)]
    assert [(g.data, g.data_rank, g.draw) for g in groups] == [(2, 0, 0), (2, 0, 0), (2, 1, 1), (2, 1, 1)]
    assert divide("fsdp+tp", 8, "--tensor-parallel", "4").data == 2


def test_a_copy_is_on_one_host_unless_told_otherwise() -> None:
    assert divide("hsdp", 8, local=4).replicas == 2
    assert divide("hsdp", 8, local=2).replicas == 4
    assert divide("hsdp", 8).replicas == 2
    assert divide("hsdp", 8, "--shard-ranks", "2").replicas == 4
    assert divide("hsdp", 8, local=2).mesh(8) == {"data": 8, "tensor": 1, "pipeline": 1, "replicas": 4}
    assert divide("fsdp+tp", 4).mesh(4) == {"data": 2, "tensor": 2, "pipeline": 1, "replicas": 1}
    two_stages_a_rank = divide("pp", 4, "--pipeline-schedule", "interleaved")
    assert two_stages_a_rank.mesh(4) == {"data": 1, "tensor": 1, "pipeline": 4, "replicas": 1}
    assert str(divide("hsdp", 8, local=2)) == "4 copies x 2 shards"
    assert str(divide("fsdp+tp", 4)) == "2 shards x 2 in a layer"
    assert str(divide("fsdp", 4)) == ""


@pytest.mark.parametrize(
    ("strategy", "ranks", "options", "said"),
    [
        ("hsdp", 2, (), "needs two copies or more, each of two ranks or more, and not 1 rank in a copy"),
        ("hsdp", 4, ("--shard-ranks", "3"), "needs two copies or more"),
        ("hsdp", 8, ("--shard-ranks", "3"), "copies of 3 ranks do not fit; --shard-ranks can be 2 or 4"),
        ("hsdp", 5, (), "copies of 2 ranks do not fit; no size of them does: use fsdp"),
        ("tp", 1, (), "and this is one rank: use ddp"),
        ("fsdp+tp", 2, (), "needs two groups or more of 2 ranks that share layers; use tp for one group"),
        ("fsdp+tp", 6, ("--tensor-parallel", "4"), "needs two groups or more of 4 ranks"),
        ("fsdp+tp", 12, ("--tensor-parallel", "5"), "--tensor-parallel can be 2 or 3 or 4 or 6"),
        ("pp", 1, (), "and this is one rank: use ddp"),
        ("dp", 2, (), "one process for all GPUs of a host, and there are 2 ranks: start one"),
    ],
)
def test_numbers_of_ranks_that_cannot_be_divided(
    strategy: str, ranks: int, options: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        divide(strategy, ranks, *options)
    assert f"--strategy {strategy}" in str(caught.value)
    assert said in str(caught.value)


def test_dp_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    one = World(rank=0, local_rank=0, size=1, device=torch.device("cuda", 0))
    with pytest.raises(UsageError, match="needs two GPUs or more, and there is one: use ddp"):
        strategies.find("dp").divide(parse([]), one)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--strategy", "fsdpp"), "no such strategy; did you mean fsdp"),
        (("--strategy", "zzz"), "no such strategy; there are ddp, fsdp, hsdp, zero1, zero2, zero3, tp, "),
        (
            ("--strategy", "ddp", "--reshard-after-forward", "no"),
            "--reshard-after-forward means nothing under --strategy ddp, only under fsdp, hsdp, fsdp+tp",
        ),
        (("--strategy", "fsdp", "--shard-ranks", "2"), "--shard-ranks means nothing under --strategy fsdp"),
        (("--strategy", "tp", "--tensor-parallel", "2"), "only under fsdp+tp: leave it out"),
        (
            ("--pipeline-schedule", "gpipe"),
            "--pipeline-schedule means nothing under --strategy ddp, only under",
        ),
    ],
)
def test_options_that_mean_nothing_to_a_strategy(options: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        strategies.check(parse([*options]))
    assert said in str(caught.value)


def test_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.torch_version import TorchVersion

    monkeypatch.setattr(torch, "__version__", TorchVersion("2.5.1"))
    with pytest.raises(UsageError, match=r"--strategy fsdp needs torch 2\.6 or newer, this is 2\.5\.1"):
        strategies.find("fsdp")
    strategies.find("ddp")


# --- blocks and plans --------------------------------------------------------------------------------------


def names(model: nn.Module, *given: str) -> list[str]:
    task = contract.load(job("ragged"))
    object.__setattr__(task, "blocks", given)
    return list(blocks.find(model, task))


def test_repeated_blocks_are_found() -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    stack = nn.ModuleList(block() for _ in range(2))
    assert names(nn.ModuleDict({"stack": stack, "head": nn.Linear(2, 2)})) == ["stack.0", "stack.1"]
    assert names(nn.Sequential(nn.Embedding(2, 2), nn.Linear(2, 2))) == []
    nested = nn.ModuleList(nn.ModuleList(block() for _ in range(2)) for _ in range(2))
    assert names(nested) == ["0.0", "0.1", "1.0", "1.1"]  # lists are never called
    two = nn.ModuleDict({"up": stack, "down": nn.ModuleList([block(), block()]), "act": nn.ReLU()})
    assert names(two) == ["up.0", "up.1", "down.0", "down.1"]


def test_blocks_are_those_that_the_job_names() -> None:
    model = nn.ModuleDict(
        {"stack": nn.ModuleList(nn.Linear(2, 2) for _ in range(2)), "head": nn.Linear(2, 2)}
    )
    assert names(model, "head", "stack") == ["head", "stack.0", "stack.1"]
    with pytest.raises(
        JobError, match="BLOCKS names 'stak', and the model has no such submodule; did you mean"
    ):
        names(model, "stak")


TWO = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.last = nn.Linear(4, 4)
        {tie}

    def forward(self, x):
        for layer in (self.first, *self.layers, self.last):
            x = layer(x)
        return x

def build_model(cfg):
    return Model()
"""


def test_one_tensor_in_two_units(train: Trainings, tmp_path: Path) -> None:
    path = write(tmp_path, TWO.format(tie="self.layers[1].weight = self.first.weight"))
    said = (
        "first.weight and layers.1.weight are one tensor, outside of the blocks and in block layers.1, which "
        "--strategy fsdp takes apart; untie them, or use ddp"
    )
    with pytest.raises(JobError, match=said):
        train("--task", path, "--strategy", "fsdp", "--steps", "2")


def test_one_tensor_twice_outside_of_the_blocks_trains_and_resumes(train: Trainings, tmp_path: Path) -> None:
    """An embedding that is the output layer too is the common case."""
    path = write(tmp_path, TWO.format(tie="self.last.weight = self.first.weight"))
    options = ("--task", path, "--micro-batch", "4")
    whole = train(*options, "--steps", "6", "--checkpoint-dir", str(tmp_path / "other"))
    first = train(*options, "--strategy", "fsdp", "--steps", "6", "--checkpoint-every", "3")
    assert first == pytest.approx(whole, abs=1e-6)
    (train.checkpoints / "step-6" / "complete.json").unlink()
    rest = train(*options, "--strategy", "fsdp", "--steps", "6")
    assert rest == {step: first[step] for step in (4, 5, 6)}


@pytest.mark.parametrize("strategy", ["fsdp", "dp"])
def test_a_model_without_parameters(train: Trainings, tmp_path: Path, strategy: str) -> None:
    path = write(tmp_path, "def build_model(cfg): return nn.ReLU()")
    with pytest.raises(JobError, match="build_model returned a model without parameters to train"):
        train("--task", path, "--strategy", strategy, "--steps", "2")


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({}, "has no TP_PLAN, which says what layers ranks can share: add one, such as\n"),
        (
            {"layers.*.upp": "colwise"},
            "TP_PLAN names 'layers.*.upp', and the model has no such layer; did you",
        ),
        ({"layers.*": "colwise", "layers.7": "rowwise"}, "TP_PLAN names 'layers.7', and the model has no"),
        ({"layers": "colwise"}, "TP_PLAN names layers, a ModuleList; ranks can share nn.Linear and nn.Embed"),
        ({"odd": "colwise"}, "2 ranks cannot share odd colwise: its size of 5 is not a multiple"),
        ({"odd": "rowwise"}, "2 ranks cannot share odd rowwise: its size of 3 is not a multiple"),
    ],
)
def test_a_plan_that_does_not_fit(plan: dict[str, str], said: str) -> None:
    from trainer.strategies.tp import share_layers

    class Mesh:
        def size(self) -> int:
            return 2

    layers = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(4, 8)}) for _ in range(2))
    model = nn.ModuleDict({"layers": layers, "odd": nn.Linear(3, 5)})
    task = contract.load(job("ragged"))
    object.__setattr__(task, "tp_plan", plan)
    with pytest.raises(JobError) as caught:
        share_layers(model, task, Mesh())  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_a_star_in_a_plan_is_one_word() -> None:
    task = contract.load(job("ragged"))
    object.__setattr__(task, "tp_plan", {"layers.*": "colwise"})
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Sequential(nn.Linear(2, 2))])})
    assert list(matched(model, task)) == ["layers.0"]


@pytest.mark.parametrize(
    ("more", "options", "accumulation", "said"),
    [
        ("", (), 1, "on 2 ranks needs 2 micro-batches a step or more, and there are 1: raise --accumulation"),
        (
            "",
            ("--pipeline-schedule", "interleaved"),
            3,
            "takes a multiple of 2 micro-batches a step, and not 3",
        ),
        (
            "",
            ("--global-batch", "10", "--micro-batch", "3"),
            4,
            "a global batch of 10 is not a multiple of 3",
        ),
        ("def forward(model, batch): return model(batch[0])", (), 2, "so the job cannot have one"),
    ],
)
def test_batches_and_jobs_that_do_not_go_through_a_pipeline(
    tmp_path: Path, more: str, options: tuple[str, ...], accumulation: int, said: str
) -> None:
    path = write(tmp_path, TWO.format(tie="") + more)
    cfg = parse(["--strategy", "pp", *options])
    with pytest.raises((UsageError, JobError)) as caught:
        strategies.find("pp")(contract.load(path), cfg, world(2), accumulation)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("tie", "output", "count", "said"),
    [
        ("", "x", 3, "its model has 2 blocks, too few for 3 stages; start fewer ranks"),
        (
            "self.last.weight = self.first.weight",
            "x",
            2,
            "first.weight and last.weight are one tensor, which",
        ),
        ("", "{'x': x}", 2, "needs a model that returns one tensor, and this one returns a dict"),
        ("", "self.first(x)", 2, "first.weight is used in stages 0 and 1 of the pipeline, and is on one"),
        ("", "x + y", 2, "stage 1 of the pipeline uses the input 'y' of the model"),
    ],
)
def test_models_that_cannot_be_cut(tmp_path: Path, tie: str, output: str, count: int, said: str) -> None:
    from trainer.strategies.stages import cut

    text = (
        TWO.format(tie=tie).replace("return x\n", f"return {output}\n").replace("(self, x)", "(self, x, y)")
    )
    task = contract.load(write(tmp_path, text))
    with pytest.raises(JobError) as caught:
        cut(task.build_model(None), (torch.ones(3, 4), torch.ones(3, 4)), count, task)
    assert said in str(caught.value)


def test_a_pipeline_feeds_tensors() -> None:
    from trainer.strategies.pp import model_inputs

    task = contract.load(job("ragged"))
    with pytest.raises(JobError, match="feeds the model tensors only, and a batch has a dict"):
        model_inputs({"x": torch.ones(2)}, task)


# --- among ranks -------------------------------------------------------------------------------------------


def build(rank: int, ranks: int, path: str, *options: str, node: int = 0, local: int | None = None) -> Any:
    cfg = parse(["--task", path, *options])
    where = World(
        rank=rank, local_rank=0, size=ranks, device=torch.device("cpu"), node=node, local_size=local or ranks
    )
    torch.manual_seed(rank)  # a job that draws other weights on each rank
    return strategies.find(cfg.strategy)(contract.load(path), cfg, where, 1)


def whole_weights(rank: int, path: str, strategy: str) -> list[float]:
    built = build(rank, 2, path, "--strategy", strategy)
    return [
        float((p.full_tensor() if hasattr(p, "full_tensor") else p).detach().double().sum())
        for p in built.model.parameters()
    ]


def test_ranks_that_drew_other_weights_get_those_of_rank_0() -> None:
    torch.manual_seed(0)
    alone = contract.load(job("stack")).build_model(None)
    drawn = [float(p.detach().double().sum()) for p in alone.parameters()]
    for strategy in ("fsdp", "tp"):
        for weights in together(2, whole_weights, job("stack"), strategy):
            assert weights == pytest.approx(drawn)


def running_means(rank: int, path: str, strategy: str) -> list[float]:
    built = build(rank, 2, path, "--strategy", strategy)
    built.accumulate([(torch.full((2, 4), float(rank + 1)), torch.ones(2, 4))], torch.zeros(()))
    return [*built.model[0].running_mean.tolist(), float(built.model[0].num_batches_tracked)]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_buffers_that_a_step_changes_are_those_of_rank_0_on_all(tmp_path: Path, strategy: str) -> None:
    path = write(tmp_path, "def build_model(cfg): return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))")
    first, second = together(2, running_means, path, strategy)
    assert first == second == pytest.approx([0.1] * 4 + [1])


def asks_and_skips(rank: int, path: str, strategy: str) -> tuple[list[float], bool]:
    built = build(rank, 2, path, "--strategy", strategy)
    task = built.task
    batch = torch.utils.data.default_collate(task.build_dataset(None, "train")[:4])
    totals = built.accumulate([batch], torch.tensor(float(rank)))
    built.finish_gradients(totals[1])
    before = [getattr(p, "to_local", lambda p=p: p)().detach().clone() for p in built.model.parameters()]
    built.apply(torch.tensor(1.0) if built.can_skip else None)
    after = [getattr(p, "to_local", lambda p=p: p)().detach() for p in built.model.parameters()]
    return totals.tolist(), all(map(torch.equal, before, after))


@pytest.mark.parametrize("strategy", ["fsdp", "tp"])
def test_one_rank_that_is_asked_to_stop_is_heard_and_a_spoiled_step_is_skipped(strategy: str) -> None:
    for totals, same in together(2, asks_and_skips, job("stack"), strategy):
        assert totals[2] > 0
        assert same


def keep(rank: int, folder: Path, strategy: str, local: int) -> tuple[list[int], str]:
    """Save on two hosts of `local` ranks that share no folder."""
    node = rank // local
    built = build(rank, 2 * local, job("stack"), "--strategy", strategy, node=node, local=local)
    own = folder / str(node)
    found = places.find(
        own, World(rank=rank, local_rank=0, size=2 * local, device=torch.device("cpu"), node=node)
    )
    checkpoints = Checkpoints(own, keep=3, places=found, say=print)
    try:
        checkpoints.check(built)
    except UsageError as error:
        return sorted(built.replica_ranks), str(error)
    checkpoints.save(built, Position(step=2, samples=2, seed=0, dataset_length=53), background=False).result()
    return sorted(built.replica_ranks), ""


def read(rank: int, folder: Path) -> float:
    built = build(rank, 1, job("stack"), "--strategy", "ddp")
    found = places.find(folder, world(1))
    checkpoints = Checkpoints(folder, keep=3, places=found, say=print)
    newest = checkpoints.newest()
    assert newest is not None
    with torch.no_grad():
        for parameter in built.model.parameters():
            parameter.zero_()
    checkpoints.load(built, newest)
    return float(sum(p.detach().double().abs().sum() for p in built.model.parameters()))


def test_a_copy_on_each_host_makes_whole_checkpoints_there(tmp_path: Path) -> None:
    kept = together(4, keep, tmp_path, "hsdp", 2)
    assert kept == [([0, 1], ""), ([0, 1], ""), ([2, 3], ""), ([2, 3], "")]
    torch.manual_seed(0)
    drawn = float(
        sum(
            p.detach().double().abs().sum()
            for p in contract.load(job("stack")).build_model(None).parameters()
        )
    )
    for host in "01":
        assert together(1, read, tmp_path / host) == [pytest.approx(drawn)]


@pytest.mark.parametrize("strategy", ["fsdp", "tp"])
def test_a_copy_over_hosts_needs_a_folder_that_they_share(tmp_path: Path, strategy: str) -> None:
    for ranks, said in together(2, keep, tmp_path, strategy, 1):
        assert ranks == [0, 1]
        assert said.startswith(f"--strategy {strategy} spreads the model over the hosts")


DROPPED = TWO.format(tie="self.drop = nn.Dropout(0.5)").replace("x = layer(x)", "x = self.drop(layer(x))")


def evaluated(rank: int, path: str) -> tuple[float, float, float]:
    """The loss twice through the pipeline, and of the whole model on one rank."""
    task = contract.load(path)
    dataset = task.build_dataset(None, "valid")
    cfg = parse(["--task", path, "--strategy", "pp", "--micro-batch", "4", "--eval-every", "1"])
    torch.manual_seed(0)
    built = strategies.find("pp")(task, cfg, world(2, rank), 2, dataset)
    torch.manual_seed(0)
    whole = task.build_model(cfg).eval()
    batch = torch.utils.data.default_collate(dataset[:4])
    with torch.no_grad():
        first, second = (built.evaluate(batch)["loss"][0] for _ in range(2))
        return first, second, float(task.loss(whole(batch[0]), batch)[0])


def test_nothing_is_dropped_when_a_pipeline_evaluates(tmp_path: Path) -> None:
    for first, second, alone in together(2, evaluated, write(tmp_path, DROPPED)):
        assert first == second == pytest.approx(alone)

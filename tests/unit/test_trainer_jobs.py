"""What a job returns: the smallest one trains, and wrong models, datasets, losses and batches are named."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from training import Trainings

from trainer.contract import SMALLEST
from trainer.data import to_device
from trainer.errors import JobError, UsageError

JOB = "\n".join(line.removeprefix("    ") for line in SMALLEST.splitlines()[1:])


def write(folder: Path, more: str = "") -> str:
    path = folder / "job.py"
    path.write_text(f"{JOB}\n{more}\n")
    return str(path)


def test_the_smallest_job_trains(train: Trainings, tmp_path: Path) -> None:
    assert list(train("--task", write(tmp_path), "--steps", "3")) == [1, 2, 3]


def test_a_job_with_its_own_collate_forward_optimizer_and_workers(train: Trainings, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
def collate(samples):
    return {"x": torch.stack([x for x, _ in samples]), "y": torch.stack([y for _, y in samples])}

def forward(model, batch):
    return model(batch["x"])

def loss(output, batch):
    return torch.nn.functional.mse_loss(output, batch["y"], reduction="sum"), batch["y"].numel()

def build_optimizer(model, cfg):
    return torch.optim.SGD(model.parameters(), lr=0.1)
""",
    )
    reported = train("--task", path, "--steps", "40", "--workers", "1", "--warmup-steps", "0")
    assert reported[40] < reported[1]


@pytest.mark.parametrize("pair", ["total.view(1, 1), 3.0", "total, torch.tensor([3])", "[total, 3]"])
def test_sum_and_count_may_have_any_shape(train: Trainings, tmp_path: Path, pair: str) -> None:
    body = f"    total = (output - batch[1]).abs().sum()\n    return {pair}"
    path = write(tmp_path, f"def loss(output, batch):\n{body}")
    assert list(train("--task", path, "--steps", "2", "--eval-every", "1")) == [1, 2]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "def build_model(cfg): return 3",
            "build_model returned a int, not a torch.nn.Module: return a model",
        ),
        ("def build_model(cfg): return torch.nn.Linear", "build_model returned the class Linear, not a"),
        ("def build_model(cfg): ...", "build_model returned a NoneType"),
        ("def build_model(cfg): return torch.nn.ReLU()", "a model without parameters to train"),
        ("def build_dataset(cfg, split): return []", r"build_dataset\(cfg, 'train'\) returned no samples"),
        (
            "def build_dataset(cfg, split): return iter([1])",
            r"a list_iterator, which lacks len\(\) or \[index\]",
        ),
        (
            "def build_dataset(cfg, split): yield 1",
            r"a generator, which lacks len\(\) or \[index\]: return a list",
        ),
        ("def build_dataset(cfg, split): ...", r"a NoneType, which lacks len\(\) or \[index\]"),
        (
            "class Stream(torch.utils.data.IterableDataset):\n"
            "    def __iter__(self): return iter([1])\n"
            "def build_dataset(cfg, split): return Stream()",
            r"a Stream, which lacks len\(\) or \[index\]",
        ),
        (
            "def build_dataset(cfg, split): return torch.utils.data.DataLoader([1])",
            r"a DataLoader, which lacks len\(\) or \[index\]",
        ),
        ("def build_optimizer(model, cfg): return 3", "build_optimizer returned a int"),
        (
            "def loss(output, batch): return output.sum()",
            r"must return \(loss_sum, count\), and returned a Tensor: return both, such as\n    return torch",
        ),
        ("def loss(output, batch): ...", r"must return \(loss_sum, count\), and returned a NoneType"),
        (
            "def loss(output, batch): return output.detach().sum(), 3",
            "the first does not depend on the model",
        ),
        ("def loss(output, batch): return output, 3", "the first must be a tensor with the sum"),
        ("def loss(output, batch): return 3.0, 3", "the first must be a tensor with the sum"),
        ("def loss(output, batch): return output.sum(), None", "the second must say how many"),
    ],
)
def test_what_a_job_returns_is_checked(train: Trainings, tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(JobError, match=said):
        train("--task", write(tmp_path, more), "--steps", "3")


def test_an_evaluation_needs_a_batch_for_each_rank(
    train: Trainings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = """
def build_dataset(cfg, split):
    return [(torch.rand(4), torch.rand(1)) for _ in range(100 if split == "train" else 3)]
"""
    train("--task", write(tmp_path, more), "--steps", "2", "--eval-every", "1", "--micro-batch", "4")
    said = capsys.readouterr().out
    assert "no evaluation: 3 samples held out are not one micro-batch for each rank" in said
    assert "evaluation after" not in said


def test_more_samples_a_step_than_there_are_is_told(
    train: Trainings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = "def build_dataset(cfg, split): return [(torch.rand(4), torch.rand(1))] * 5"
    assert list(train("--task", write(tmp_path, more), "--steps", "2", "--micro-batch", "8")) == [1, 2]
    assert "a step takes 8 samples and there are 5: it sees some more than once" in capsys.readouterr().out


def test_a_size_that_gpt_lacks(train: Trainings) -> None:
    with pytest.raises(UsageError, match=r"--size tinny: gpt has no such size; did you mean tiny\?"):
        train("--size", "tinny")


def test_gpt_learns_from_text_and_knows_its_blocks(train: Trainings, tmp_path: Path) -> None:
    from trainer import contract
    from trainer.config import parse

    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)
    options = (
        "--data-dir",
        str(tmp_path / "text"),
        "--sequence-length",
        "32",
        "--steps",
        "60",
        "--micro-batch",
        "8",
    )
    reported = train(*options, "--learning-rate", "0.01", "--eval-every", "60")
    assert reported[60] < 0.5 * reported[1]
    task = contract.load("gpt")
    names = [name for name, _ in task.build_model(parse(options)).named_modules()]
    assert task.blocks == ("blocks",)
    assert "blocks" in names
    for pattern in task.tp_plan:
        assert pattern.replace("*", "1") in names


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


def test_batches_of_any_form_reach_the_device() -> None:
    class Odd:
        pass

    odd, device = Odd(), torch.device("meta")
    moved = to_device({"a": (torch.ones(1), [torch.ones(1)]), "b": odd, "c": 3}, device)
    assert moved["a"][0].is_meta
    assert moved["a"][1][0].is_meta
    assert (type(moved["a"]), moved["b"], moved["c"]) == (tuple, odd, 3)
    pair = to_device(Pair(torch.ones(1), 3), device)
    assert isinstance(pair, Pair)
    assert pair.x.is_meta

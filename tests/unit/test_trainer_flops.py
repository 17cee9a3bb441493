"""FLOPs of a model, and what share that is of a GPU's peak."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from training import Trainings, job, records

from trainer import contract, flops, pace
from trainer.config import parse
from trainer.flops import Counting, Utilisation, named_peak
from trainer.world import World


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100 80GB PCIe", "bf16", 312),
        ("NVIDIA H100 80GB HBM3", "bf16", 989),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H200", "fp16", 989),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA L40S", "bf16", 362),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA GeForce RTX 4090", "fp32", 82.6),
        ("NVIDIA GeForce RTX 3090", "bf16", 71),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla T4", "fp16", 65),
    ],
)
def test_peaks_of_gpus_by_the_name_that_torch_gives(name: str, precision: str, tera: float) -> None:
    assert named_peak(name, precision) == tera * 1e12


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("NVIDIA GeForce RTX 4090 D", "bf16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("NVIDIA A10G", "bf16"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "bf16"),
        ("Tesla V100-SXM2-16GB", "bf16"),
        ("Some GPU of tomorrow", "fp32"),
    ],
)
def test_of_others_nothing_is_known(name: str, precision: str) -> None:
    assert named_peak(name, precision) is None


def test_a_gpt_takes_what_the_formula_says_and_counting_changes_nothing() -> None:
    cfg = parse(["--size", "tiny", "--sequence-length", "64"])
    task = contract.load("gpt")
    model = task.build_model(cfg)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found, fault = Counting(model, task, task.build_dataset(cfg, "train"), 2).result()
    assert fault == ""
    # Embeddings are looked up, not multiplied with.
    matrices = sum(
        value.numel()
        for name, value in before.items()
        if value.ndim == 2 and name not in ("embedding.weight", "position.weight")
    )
    layers, width, tokens = 2, 64, 64
    assert found == (6 * matrices + 12 * layers * width * tokens) * tokens
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "meta" not in {parameter.device.type for parameter in model.parameters()}


NO_COUNT = """
import torch

def build_model(cfg):
    return torch.nn.Linear(4, 1)

def build_dataset(cfg, split):
    return [(torch.ones(4), torch.ones(1))] * 8

def loss(output, batch):
    if output.sum().item() > 0:
        return output.sum(), 1
    return -output.sum(), 1
"""


def test_a_job_that_looks_at_its_numbers_cannot_be_counted_and_trains(tmp_path: Path) -> None:
    path = tmp_path / "looking.py"
    path.write_text(NO_COUNT)
    task = contract.load(str(path))
    found, fault = Counting(task.build_model(None), task, task.build_dataset(None, "train"), 2).result()
    assert found is None
    assert "item" in fault


def test_a_process_that_dies_while_it_counts_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "count", lambda *_: sys.exit(3))
    task = contract.load(job("ragged"))
    assert Counting(None, task, [], 1).result() == (None, "the process that counts died")


def test_the_share_is_known_where_both_are() -> None:
    assert Utilisation(per_sample=3e9, peak=2e12).share(200) == pytest.approx(0.3)
    assert Utilisation(peak=1e12).share(200) == "unknown"
    assert Utilisation(per_sample=1e9).share(200) == "unknown"


def test_on_a_cpu_it_is_unknown(train: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    train("--task", job("stack"), "--steps", "2", "--micro-batch", "4", "--accumulation", "3")
    told = [entry for entry in records(train.rank_dir) if "loss" in entry]
    assert [entry["mfu"] for entry in told] == ["unknown", "unknown"]
    assert told[1]["samples_per_second"] == pytest.approx(12 / told[1]["step_seconds"])
    assert "MFU" not in capsys.readouterr().out


def test_where_the_gpu_is_known_it_is_recorded_and_said(
    train: Trainings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def agree(counting: Any, precision: str, world: World, _: Any) -> Utilisation:
        found, fault = counting.result()
        assert (fault, precision, world.first) == ("", "fp32", True)
        return Utilisation(found, 1e9)

    monkeypatch.setattr(flops, "peak", lambda *_: 1e9)
    monkeypatch.setattr(flops, "agree", agree)
    saving = ("--activation-checkpointing", "yes")
    train("--task", job("stack"), "--steps", "2", "--micro-batch", "4", *saving)
    told = [entry for entry in records(train.rank_dir) if "loss" in entry]
    # Four layers of 8 x 32 twice and a head of 8 x 16, for each of 6 tokens; nothing for computing again.
    expected = 6 * 6 * (4 * 2 * 8 * 32 + 8 * 16) * told[1]["samples_per_second"] / 1e9
    assert told[1]["mfu"] == pytest.approx(expected)
    assert f"  MFU {expected:.1%}" in capsys.readouterr().out


def test_a_long_wait_for_data_is_said_with_what_to_do(
    train: Trainings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "LONG_WAIT", 1.0)
    train("--task", job("stack"), "--steps", "2", "--checkpoint-dir", str(train.folder / "a"))
    assert "waiting for data" not in capsys.readouterr().out
    monkeypatch.setattr(pace, "LONG_WAIT", -1.0)
    train("--task", job("stack"), "--steps", "2", "--checkpoint-dir", str(train.folder / "b"))
    assert "% waiting for data: raise --workers" in capsys.readouterr().out

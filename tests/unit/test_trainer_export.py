"""The weights of a checkpoint in one file: what is in it, and when there is none."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from training import Trainings, job

from trainer import export
from trainer.errors import CheckpointError

OPTIONS = ("--task", job("faults"), "--micro-batch", "4", "--log-every", "100")

TIED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 8, bias=False)
        self.back = nn.Linear(8, 4, bias=False)
        self.embedding.weight = self.back.weight
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
    def forward(self, x):
        return self.head(self.norm(self.embedding(x) + self.back(x)))
    def get_extra_state(self):
        return {"note": "no tensor"}
    def set_extra_state(self, state):
        pass

MODELS = []

def build_model(cfg):
    MODELS.append(Model())
    return MODELS[-1]

def build_dataset(cfg, split):
    return [(torch.full((8,), i / 9), torch.ones(8)) for i in range(9)]

def loss(output, batch):
    return (output - batch[1]).square().sum(), len(output)
"""


def weights(name: str) -> dict[str, Any]:
    """Of the newest model that the job has built."""
    found: dict[str, Any] = sys.modules[f"job_{name}"].MODELS[-1].state_dict()
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def files(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_file())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_both_kinds_have_the_weights_and_nothing_else(
    train: Trainings, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*OPTIONS, "--steps", "4", "--checkpoint-every", "2")
    capsys.readouterr()
    step = train.checkpoints / "step-4"
    assert export.main([str(step), "--to", str(out / "m.safetensors")]) is None
    assert capsys.readouterr().out.startswith(f"{out}/m.safetensors: step 4, 4 tensors, 0.00 M numbers, 0.0 ")
    assert export.main([str(train.checkpoints), "--to", str(out / "m.pt"), "--json"]) is None
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "checkpoint": str(step), "step": 4, "file": str(out / "m.pt"), "tensors": 4,
        "bytes": (out / "m.pt").stat().st_size, "parameters": 6 * 16 + 16 + 16 + 1, "left_out": [],
    }  # fmt: skip
    trained = weights("faults")
    assert same(load_file(out / "m.safetensors"), trained)
    assert same(torch.load(out / "m.pt", weights_only=True), trained)
    with safe_open(out / "m.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert files(out) == ["m.pt", "m.safetensors"]


def test_a_step_of_a_run(train: Trainings, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(*OPTIONS, "--steps", "2", "--checkpoint-every", "1")
    assert export.main(["1", "--to", str(out / "a.pt")]) is None
    monkeypatch.delenv("ENCAMP_RUN_DIR")
    assert "step 1 of which run?" in str(export.main(["1", "--to", str(out / "b.pt")]))
    where = ("--checkpoint-dir", str(train.checkpoints))
    assert export.main(["1", "--to", str(out / "b.pt"), *where]) is None
    assert export.main(["3", "--to", str(out / "c.pt"), *where]) == (
        f"trainer.export: error: there is no checkpoint {train.checkpoints}/step-3; "
        "complete ones there: step-1, step-2"
    )
    renamed = shutil.copytree(train.checkpoints / "step-1", out / "mine")
    assert export.main([str(renamed), "--to", str(out / "c.pt")]) is None
    assert (out / "a.pt").stat().st_size == (out / "c.pt").stat().st_size


def test_shared_and_odd_parts_of_a_model(
    train: Trainings, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tied.py").write_text(TIED)
    train("--task", str(tmp_path / "tied.py"), "--steps", "3", "--micro-batch", "4")
    for name in ("m.safetensors", "m.pt"):
        assert export.main([str(train.checkpoints), "--to", str(out / name)]) is None
    assert "left out, as they are no tensors: _extra_state" in capsys.readouterr().out
    trained = weights("tied")
    extra = trained.pop("_extra_state")
    exported = load_file(out / "m.safetensors")
    assert same(exported, trained)
    assert torch.equal(exported["embedding.weight"], exported["back.weight"])
    whole = torch.load(out / "m.pt", weights_only=True)
    assert whole.pop("_extra_state") == extra
    assert same(whole, trained)


def test_what_was_not_written_to_its_end_is_refused(train: Trainings, out: Path) -> None:
    train(*OPTIONS, "--steps", "4", "--checkpoint-every", "2")
    (train.checkpoints / "step-4" / "complete.json").unlink()
    said = export.main([str(train.checkpoints / "step-4"), "--to", str(out / "m.pt")])
    assert said == (
        f"trainer.export: error: {train.checkpoints}/step-4 was not written to its end; "
        "complete ones there: step-2"
    )
    assert export.main([str(train.checkpoints), "--to", str(out / "m.pt")]) is None
    empty = out / "empty"
    empty.mkdir()
    assert "has no complete checkpoint" in str(export.main([str(empty), "--to", str(out / "n.pt")]))
    assert "there is no checkpoint" in str(export.main([str(out / "no"), "--to", str(out / "n.pt")]))


@pytest.mark.parametrize("spoil", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("how", ["cut", "remove"])
def test_what_cannot_be_read_is_told(train: Trainings, out: Path, spoil: str, how: str) -> None:
    train(*OPTIONS, "--steps", "2")
    path = train.checkpoints / "step-2" / spoil
    if how == "cut":
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.unlink()
    said = export.main([str(train.checkpoints), "--to", str(out / "m.pt")])
    assert str(said).startswith(f"trainer.export: error: {train.checkpoints}/step-2 cannot be read: ")
    assert files(out) == []


def test_where_nothing_can_or_must_be_written(train: Trainings, out: Path) -> None:
    train(*OPTIONS, "--steps", "2")
    step = str(train.checkpoints / "step-2")
    here = out / "m.pt"
    here.write_text("mine")
    for target, said in (
        (here, "m.pt is there already; --force overwrites it"),
        (out / "m.bin", "the name must end in .safetensors, .pt or .pth"),
        (out / "no" / "m.pt", f"there is no folder {out}/no"),
        (out / "model", "the name must end in"),
    ):
        assert said in str(export.main([step, "--to", str(target)]))
    assert here.read_text() == "mine"
    assert export.main([step, "--to", str(here), "--force"]) is None
    assert same(torch.load(here, weights_only=True), weights("faults"))


def test_a_python_without_safetensors(train: Trainings, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(*OPTIONS, "--steps", "2")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "safetensors" else find(name, *more)
    )
    step = str(train.checkpoints / "step-2")
    said = export.main([step, "--to", str(out / "m.safetensors")])
    assert f"{sys.executable} -m pip install safetensors; or export to a .pt file" in str(said)
    assert export.main([step, "--to", str(out / "m.pt")]) is None


def test_a_full_disk_leaves_nothing_and_what_was_there(train: Trainings, out: Path) -> None:
    train(*OPTIONS, "--steps", "2")
    for name in ("m.safetensors", "m.pt"):
        (out / name).write_text("mine")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
        try:
            with pytest.raises(CheckpointError, match=r"could not be written: .*File too large"):
                export.export(train.checkpoints / "step-2", 2, out / name)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert (out / name).read_text() == "mine"
    assert files(out) == ["m.pt", "m.safetensors"]


BIG = """
import torch
from torch import nn

def build_model(cfg):
    return nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8)))

def build_dataset(cfg, split):
    return [torch.ones(2048)] * 2

def loss(output, batch):
    return output.square().sum(), len(output)
"""

PEAK = """
import resource, sys
import torch, torch.distributed.checkpoint, safetensors.torch
from trainer import export
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert export.main(sys.argv[1:]) is None
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt"])
def test_no_more_memory_than_the_model_takes(train: Trainings, tmp_path: Path, out: Path, name: str) -> None:
    (tmp_path / "big.py").write_text(BIG)
    train("--task", str(tmp_path / "big.py"), "--steps", "1", "--micro-batch", "1")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(train.checkpoints), "--to", str(out / name)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    model = 8 * 2048 * 2048 * 4 / 1024
    grown = int(done.stdout.splitlines()[-1])
    assert grown < 1.4 * model, f"{grown} KiB for a model of {model}"

"""Torch and TensorFlow in one trainer: what both use loads neither, and checkpoints are not mixed up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from training import Trainings, job

from trainer import strategies
from trainer.__main__ import main
from trainer.config import parse
from trainer.errors import CheckpointError, UsageError
from trainer.folder import CheckpointFolder, Position, Record, refuse_foreign

ROOT = Path(__file__).resolve().parent.parent.parent
SHARED = (
    *("batches", "config", "contract", "errors", "folder", "member", "progress", "schedule", "stop"),
    *("strategies", "tasks.corpus", "tasks.gpt_size", "__main__"),
)
FORBIDDEN = "import sys\nfor name in ('torch', 'tensorflow', 'keras', 'numpy'): sys.modules[name] = None\n"


def test_what_both_use_loads_neither() -> None:
    code = FORBIDDEN + "".join(f"import trainer.{name}\n" for name in SHARED)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_python_without_tensorflow_is_told() -> None:
    code = FORBIDDEN + (
        "from trainer.__main__ import main\nprint(main(['--strategy', 'tf-mirrored', '--task', 'gpt']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"trainer: error: {sys.executable} has no "), done.stderr
    assert "use a Python that can import it" in done.stdout


def test_strategies_of_tensorflow_are_known_without_it() -> None:
    strategies.check(parse(["--strategy", "tf-mirrored"]))
    with pytest.raises(UsageError, match="--strategy tf-mirrored is one of tensorflow, not of torch"):
        strategies.find("tf-mirrored")
    with pytest.raises(UsageError, match="did you mean tf-mirrored"):
        strategies.lookup("tf-mirored")
    with pytest.raises(UsageError, match="--offload means nothing under --strategy tf-parameter-server"):
        strategies.check(parse(["--strategy", "tf-parameter-server", "--offload", "cpu"]))
    assert main(["--strategy", "nothing"]) is not None


def test_a_checkpoint_of_tensorflow_is_told_from_one_of_torch(train: Trainings) -> None:
    options = ("--task", job("faults"), "--log-every", "100", "--steps")
    train(*options, "2")
    marker = train.checkpoints / "step-2" / "complete.json"
    said = json.loads(marker.read_text())
    assert said["framework"] == "torch"
    marker.write_text(json.dumps(said | {"framework": "tensorflow"}))
    with pytest.raises(
        CheckpointError, match="step-2 is a checkpoint of TensorFlow, which torch cannot read"
    ):
        train(*options, "3")


def test_a_checkpoint_that_names_no_framework_is_torchs(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.prepare(3)
    position = Position(step=3, samples=6, seed=0, dataset_length=9)
    folder.complete(Record(position=position, time=1.0), {})
    marker = folder.of(3) / "complete.json"
    marker.write_text(
        json.dumps({k: v for k, v in json.loads(marker.read_text()).items() if k != "framework"})
    )
    record = folder.listing().complete[3]
    refuse_foreign(record, folder, "torch")
    with pytest.raises(
        CheckpointError, match="of torch, which TensorFlow cannot read: go on under a strategy of"
    ):
        refuse_foreign(record, folder, "tensorflow")

"""What a job for TensorFlow must be, and what is said when it, an option or a checkpoint is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tensorflow_training import Trainings, job

from trainer.__main__ import main
from trainer.errors import CheckpointError, JobError, TrainerError, UsageError
from trainer.tensorflow import cluster, contract

pytestmark = pytest.mark.heavy

START = "import keras, numpy as np, tensorflow as tf\n"
MODEL = "def build_model(cfg): return keras.Sequential([keras.layers.Dense(1)])\n"
DATA = "def build_dataset(cfg, split): return [(np.random.rand(4), np.random.rand(1))] * 50\n"
LOSS = "def loss(output, batch): return tf.reduce_sum((output - batch[-1]) ** 2), tf.size(batch[-1])\n"
TORCHS = "def build_model(cfg): return Linear()\n"
SMALL = ("--steps", "2", "--micro-batch", "4")


def write(folder: Path, *parts: str) -> str:
    path = folder / "job.py"
    path.write_text(START + "".join(parts))
    return str(path)


def test_the_smallest_job_that_is_shown_trains(tmp_path: Path, train: Trainings) -> None:
    path = tmp_path / "smallest.py"
    lines = contract.SMALLEST.splitlines()[2:]
    path.write_text("\n".join(line[4:] for line in lines) + "\n")
    assert len(train("--task", str(path), *SMALL)) == 2


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((MODEL, LOSS), r"build_dataset\(cfg, split\) is missing\nthe smallest job file for TensorFlow is"),
        (
            ("def build_model(cfg): return 3\n", DATA, LOSS),
            "build_model returned a builtins.int, which is no Keras",
        ),
        (
            ("class Linear: __call__ = print\nLinear.__module__ = 'torch.nn'\n", TORCHS, DATA, LOSS),
            r"returned a torch.nn.Linear, which is no Keras model: --strategy tf-mirrored trains those of",
        ),
        (
            ("import torch\n", MODEL, DATA, LOSS),
            "imports torch: under tf-mirrored and tf-parameter-server a job",
        ),
        (("import nowhere\n", MODEL, DATA, LOSS), "imports nowhere, which"),
        (
            ("def build_model(cfg): return keras.Sequential([keras.layers.Flatten()])\n", DATA, LOSS),
            "a model without parameters to train",
        ),
        ((MODEL, DATA, "def loss(output, batch): return 3\n"), "and returned a int"),
        ((MODEL, DATA, "def loss(output, batch): return output, 3\n"), "a single number"),
        (
            (MODEL, DATA, "def loss(output, batch): return tf.reduce_sum(output), 'x'\n"),
            "must say how many losses were summed",
        ),
        ((MODEL, "def build_dataset(cfg, split): return []\n", LOSS), "returned no samples"),
        (
            (MODEL, DATA, LOSS, "def build_optimizer(model, cfg): return 3\n"),
            "build_optimizer returned a int, not a keras.optimizers.Optimizer",
        ),
    ],
    ids=range(11),
)
def test_jobs_that_break_the_contract(
    parts: tuple[str, ...], said: str, tmp_path: Path, train: Trainings
) -> None:
    with pytest.raises(JobError, match=said):
        train("--task", write(tmp_path, *parts), *SMALL, "--global-batch", "8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--offload", "cpu"), "--offload means nothing under --strategy tf-mirrored"),
        (("--gradient-compression", "fp16"), "--gradient-compression means nothing"),
        (("--reshard-after-forward", "no"), "--reshard-after-forward means nothing"),
        (("--precision", "fp16"), "--precision fp16 is not there under --strategy tf-mirrored: use bf16"),
        (("--activation-checkpointing", "yes"), "--activation-checkpointing yes"),
        (
            ("--micro-batch", "auto"),
            "--micro-batch auto is not there under --strategy tf-mirrored",
        ),
        (("--device", "cuda"), "sees no GPU here"),
        (("--global-batch", "7"), "cannot be shared equally by 2 ranks: use 6 or 8"),
        (("--task", "images"), "no such task; there are gpt"),
        (("--size", "tinny"), "did you mean tiny"),
    ],
)
def test_options_that_cannot_be(options: tuple[str, ...], said: str, train: Trainings) -> None:
    with pytest.raises(UsageError) as caught:
        train(*SMALL, *options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "options", "error", "said"),
    [
        ({"JOB_OPTIMIZER": "1"}, ("--on-nan", "skip"), UsageError, "needs the trainer's own optimizer"),
        ({"JOB_OPTIMIZER": "schedule"}, (), JobError, "an optimizer with a schedule of its own"),
        ({"JOB_OPTIMIZER": "1", "JOB_MODULE": "1"}, (), JobError, "an optimizer of Keras for a tf.Module"),
        ({"JOB_MODULE": "1"}, ("--precision", "bf16"), JobError, "knows nothing of --precision bf16"),
    ],
)
def test_optimizers_and_models_that_do_not_go_together(
    environment: dict[str, str],
    options: tuple[str, ...],
    error: type[TrainerError],
    said: str,
    train: Trainings,
) -> None:
    with pytest.raises(error, match=said):
        train("--task", job("own_optimizer"), *SMALL, *options, **environment)


def test_checkpoints_that_do_not_fit(train: Trainings) -> None:
    options = ("--task", job("marks"), "--micro-batch", "4", "--steps")
    train(*options, "2", "--checkpoint-every", "1")
    newest = train.checkpoints / "step-2"
    with pytest.raises(
        CheckpointError, match=r"another model: marks/up/kernel is \(6, 16\) there and \(6, 8\) here"
    ):
        train(*options, "3", JOB_WIDTH="8")
    with pytest.raises(CheckpointError, match=r"step-2 is a checkpoint of another model: it has no slope"):
        train("--task", job("own_optimizer"), "--steps", "3", JOB_MODULE="1")
    state = (newest / "state.npz").read_bytes()
    (newest / "state.npz").write_bytes(state[: len(state) // 2])
    with pytest.raises(
        CheckpointError, match=r"step-2 cannot be read: .*\nremove it, and training resumes from"
    ):
        train(*options, "3")
    marker = json.loads((newest / "complete.json").read_text())
    (newest / "complete.json").write_text(json.dumps({k: v for k, v in marker.items() if k != "framework"}))
    with pytest.raises(
        CheckpointError, match="is a checkpoint of torch, which TensorFlow cannot read: go on"
    ):
        train(*options, "3")
    (newest / "complete.json").unlink()
    assert list(train(*options, "3")) == [2, 3]


def test_a_disk_without_room_costs_a_checkpoint_and_not_the_training(
    train: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = np.savez
    full = {"left": 1}

    def savez(*words: object, **arrays: object) -> None:
        if full["left"]:
            full["left"] -= 1
            raise OSError(28, "No space left on device")
        save(*words, **arrays)

    monkeypatch.setattr(np, "savez", savez)
    assert len(train("--task", job("marks"), *SMALL, "--checkpoint-every", "1")) == 2
    assert [path.name for path in train.checkpoints.iterdir()] == ["step-2"]
    full["left"] = 9
    with pytest.raises(CheckpointError, match=r"step-3 could not be written: .*No space left"):
        train("--task", job("marks"), "--steps", "3", "--micro-batch", "4")
    assert [path.name for path in train.checkpoints.iterdir()] == ["step-2"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("", "needs TF_CONFIG, which tells each process"),
        ("{", "TF_CONFIG does not describe a cluster"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}', "KeyError"),
        (
            '{"cluster": {"chief": ["a:1"], "worker": ["a:2"], "ps": ["a:3"]}, '
            '"task": {"type": "ps", "index": 1}}',
            "there is no ps 1",
        ),
        (
            '{"cluster": {"chief": ["a"], "worker": ["a:2"], "ps": ["a:3"]}, "task": {"type": "ps"}}',
            "addresses",
        ),
    ],
)
def test_clusters_that_are_none(config: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", config)
    answer = main(["--strategy", "tf-parameter-server", "--device", "cpu"])
    assert answer is not None and answer.startswith("trainer: error: ") and said in answer


def test_places_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"chief": ["a:1"], "worker": ["a:2", "b:1", "a:3"], "ps": ["b:2"]}
    monkeypatch.delenv("RANK", raising=False)
    for place, (kind, index, here) in enumerate(
        [("chief", 0, 0), ("worker", 0, 0), ("worker", 1, 0), ("worker", 2, 1)]
    ):
        monkeypatch.setenv(
            "TF_CONFIG", json.dumps({"cluster": addresses, "task": {"type": kind, "index": index}})
        )
        own = cluster.from_environment()
        assert (own.member().rank, own.member().size) == (place, 5)
        assert kind == "chief" or own.index_here() == here

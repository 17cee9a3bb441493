"""Training with TensorFlow in this process, its losses, and a loop to compare with.

TensorFlow is imported where it is used: before, its environment has to be set.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).parent / "jobs"


def job(name: str) -> str:
    return str(JOBS / f"{name}.py")


def records(rank_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (rank_dir / "progress.jsonl").read_text().splitlines()]


def losses(rank_dir: Path) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in records(rank_dir) if "loss" in entry}


def worst(ours: dict[int, float], theirs: dict[int, float]) -> float:
    assert ours.keys() == theirs.keys()
    return max(abs(ours[step] - theirs[step]) for step in ours)


def reference(task_name: str, *options: str, global_batch: int) -> dict[int, float]:
    """The losses of the plainest training there is: no strategy, the whole batch at once, AdamW in NumPy."""
    import keras
    import numpy as np
    import tensorflow as tf

    from trainer.batches import Order
    from trainer.config import parse
    from trainer.schedule import learning_rate_share
    from trainer.tensorflow import contract
    from trainer.tensorflow.data import collate

    cfg = parse(["--task", task_name, *options])
    task = contract.load(task_name)
    keras.utils.clear_session()
    keras.utils.set_random_seed(cfg.seed)
    keras.config.set_dtype_policy("float32")
    model = task.build_model(cfg)
    dataset = task.build_dataset(cfg, "train")
    order = Order(len(dataset), cfg.seed)
    model(collate([dataset[order[0]]])[0])
    weights = [variable.value for variable in model.trainable_variables]
    first = [np.zeros(weight.shape) for weight in weights]
    second = [np.zeros(weight.shape) for weight in weights]
    result = {}
    for step in range(1, cfg.steps + 1):
        samples = range((step - 1) * global_batch, step * global_batch)
        batch = collate([dataset[order[sample]] for sample in samples])
        with tf.GradientTape() as tape:
            total, count = task.loss(model(batch[0], training=True), batch)
            mean = total / tf.cast(count, tf.float32)
        gradients = [gradient.numpy().astype("float64") for gradient in tape.gradient(mean, weights)]
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
        share = min(cfg.grad_clip / (norm + 1e-6), 1.0) if cfg.grad_clip else 1.0
        rate = cfg.learning_rate * learning_rate_share(step, warmup=cfg.warmup_steps, steps=cfg.steps)
        for n, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            first[n] = 0.9 * first[n] + 0.1 * share * gradient
            second[n] = 0.95 * second[n] + 0.05 * (share * gradient) ** 2
            value = weight.numpy().astype("float64")
            if value.ndim >= 2:
                value *= 1 - rate * cfg.weight_decay
            denominator = np.sqrt(second[n] / (1 - 0.95**step)) + 1e-8
            weight.assign(value - rate * first[n] / (1 - 0.9**step) / denominator)
        result[step] = float(mean)
    return result


class Trainings:
    """Trains in this process, each time with a folder of its own for what the rank reports."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.count = 0
        monkeypatch.setenv("ENCAMP_HOME", str(folder / "home"))
        monkeypatch.setenv("ENCAMP_RUN_DIR", str(folder / "run"))
        monkeypatch.delenv("TF_CONFIG", raising=False)

    @property
    def rank_dir(self) -> Path:
        """Of the newest run."""
        return self.folder / f"rank-{self.count}"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "run" / "checkpoints"

    def __call__(self, *options: str, stop_at: int = 0, **environment: str) -> dict[int, float]:
        """Train on two parts of the CPU, and return the losses by step. Told to stop after `stop_at`."""
        from trainer.config import parse
        from trainer.progress import Progress
        from trainer.tensorflow.run import run

        self.count += 1
        self.rank_dir.mkdir()
        record = Progress.record

        def recorded(self: Progress, phase: str, step: int, **values: Any) -> None:
            record(self, phase, step, **values)
            if phase == "train" and stop_at and step == stop_at:
                signal.raise_signal(signal.SIGTERM)

        common = ("--strategy", "tf-mirrored", "--device", "cpu", "--log-every", "1")
        with self.monkeypatch.context() as patch:
            patch.setenv("ENCAMP_RANK_DIR", str(self.rank_dir))
            patch.setattr(Progress, "record", recorded)
            for name, value in environment.items():
                patch.setenv(name, value)
            run(parse([*common, *options]))
        return losses(self.rank_dir)

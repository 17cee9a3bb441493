"""tf-parameter-server: real processes under the agent's launcher and the shim, on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow_training import Trainings, job, losses, records, reference, worst

ROOT = Path(__file__).resolve().parent.parent.parent
AGENT = ROOT / "agent"

pytestmark = pytest.mark.heavy

QUICK = ("--task", job("marks"), "--warmup-steps", "3", "--learning-rate", "0.01", "--log-every", "1")
RAGGED = ("--global-batch", "10", "--micro-batch", "4", "--grad-clip", "0.3")


class Cluster:
    """The folder of a run, and attempts in it, each with its launcher."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempts = 0

    @property
    def attempt(self) -> Path:
        return self.folder / f"attempt-{self.attempts}"

    def rank(self, number: int) -> Path:
        return self.attempt / f"rank{number}"

    def log(self, number: int) -> str:
        return (self.attempt / f"rank{number}.log").read_text()

    @contextmanager
    def start(self, workers: int, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        self.attempts += 1
        self.attempt.mkdir()
        env = os.environ | environment
        env |= {
            "PYTHONPATH": str(ROOT),
            "ENCAMP_HOME": str(self.folder),
            "ENCAMP_RUN_DIR": str(self.folder / "run"),
        }
        env |= {"ENCAMP_ATTEMPT_DIR": str(self.attempt), "OMP_NUM_THREADS": "1"}
        trainer = [str(AGENT / "rank.py"), "module", "trainer", "--strategy", "tf-parameter-server"]
        launcher = [str(AGENT / "process_launcher.py"), "tf-parameter-server", "--nproc", str(workers)]
        process = subprocess.Popen(
            [sys.executable, *launcher, "--", *trainer, "--device", "cpu", *options],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # it ends those that it has started
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.communicate()

    def run(self, workers: int, *options: str, code: int = 0, **environment: str) -> dict[int, float]:
        with self.start(workers, *options, **environment) as process:
            _, said = process.communicate(timeout=240)
        assert process.returncode == code, said + self.log(0)
        return losses(self.rank(0))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def until(condition: Any, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_one_worker_learns_what_a_plain_loop_learns_and_goes_on_after_a_stop(cluster: Cluster) -> None:
    expected = reference(job("marks"), "--steps", "20", *QUICK[2:], *RAGGED, global_batch=10)
    options = (*QUICK, *RAGGED, "--steps", "20", "--eval-every", "7")
    with cluster.start(1, *options) as process:
        progress = cluster.rank(0) / "progress.jsonl"
        until(lambda: process.poll() is not None or (progress.exists() and losses(cluster.rank(0))))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM, said
    before = losses(cluster.rank(0))
    assert "asked to stop (SIGTERM): leaving with a checkpoint" in cluster.log(0)
    assert f"stopped as asked after step {len(before)}" in cluster.log(0)
    after = cluster.run(1, *options)
    assert f"going on with step {len(before) + 1}" in cluster.log(0)
    assert worst(before | after, expected) < 2e-4


def test_two_workers_share_the_steps_and_every_process_reports(cluster: Cluster, train: Trainings) -> None:
    options = (
        *QUICK,
        "--steps",
        "40",
        "--micro-batch",
        "8",
        "--eval-every",
        "20",
        "--checkpoint-every",
        "20",
    )
    said = cluster.run(2, *options)
    assert list(said) == list(range(1, 41))
    assert sum(list(said.values())[-10:]) < 0.8 * sum(list(said.values())[:10])
    by_worker = [losses(cluster.rank(number)) for number in (1, 2)]
    assert all(by_worker) and by_worker[0].keys() | by_worker[1].keys() == said.keys()
    assert worst(by_worker[0] | by_worker[1], said) < 1e-5
    for number in (1, 2, 3):
        steps = [entry["step"] for entry in records(cluster.rank(number))]
        assert steps == sorted(steps) and steps[-1] == 40
        assert {"init", "train", "eval", "save"} <= {
            entry["phase"] for entry in records(cluster.rank(number))
        }
        assert "done" in cluster.log(number)
    assert "asynchronous: each step is one worker's" in cluster.log(0)
    folder = cluster.folder / "run" / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["step-20", "step-40"]
    # The other strategy of TensorFlow goes on from there.
    more = train("--task", job("marks"), "--steps", "42", "--checkpoint-dir", str(folder))
    assert list(more) == [41, 42] and more[41] < said[1]


def test_a_loss_that_is_no_number_ends_all_of_it(cluster: Cluster) -> None:
    cluster.run(2, *QUICK, "--steps", "20", "--checkpoint-every", "1", code=1, JOB_SPOILED="7")
    assert "is nan; stopped before it reached the weights" in cluster.log(0)
    for path in (cluster.folder / "run" / "checkpoints").glob("step-*/state.npz"):
        with np.load(path) as state:
            assert all(np.isfinite(state[name]).all() for name in state.files)


def test_a_worker_that_dies_ends_the_attempt(cluster: Cluster) -> None:
    with cluster.start(2, *QUICK, "--steps", "1000000") as process:
        until(lambda: (cluster.rank(2) / "progress.jsonl").exists() and losses(cluster.rank(2)))
        pid = int(next(line for line in (process.stderr or []) if "worker 1" in line).rpartition(" ")[2])
        os.kill(pid, signal.SIGKILL)
        assert process.wait(100) == 1

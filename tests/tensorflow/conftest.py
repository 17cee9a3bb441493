"""Fixtures of the tests of training with TensorFlow.

Neither torch nor what other tests need is there. In a Python without TensorFlow nothing is collected.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorflow_training import Trainings

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["OMP_NUM_THREADS"] = "1"

# This folder has the same name, but no file of a package.
_found = importlib.util.find_spec("tensorflow")
collect_ignore_glob = [] if _found is not None and _found.origin else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def parts_of_the_cpu() -> None:
    """Before TensorFlow computes anything: later it cannot be told."""
    from trainer.tensorflow import devices, mirrored

    devices.limit_threads()
    devices.divide_cpu(mirrored.CPU_REPLICAS)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainings]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield Trainings(tmp_path, monkeypatch)
    for number, handler in handlers.items():
        signal.signal(number, handler)

"""Jobs that train in turns, each when it is told to: see `train_and_time.py`."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

SCRIPT = Path(__file__).with_name("train_and_time.py")
RANKS = 2
DEADLINE = 120
"""Seconds that a job may take to start, or a turn to end."""


class Trainee:
    """A job that runs the script with `path` as its argument."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(DEADLINE)
        self.connection: socket.socket | None = None
        self.answers: IO[str] | None = None

    def meet(self) -> None:
        """Wait until it is there."""
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(DEADLINE)
        self.answers = self.connection.makefile("r")

    def train(self, steps: int, how: str = "") -> float:
        """A turn, without the optimizers' hooks when `how` is `off`. Returns its median step's seconds."""
        assert self.connection is not None
        assert self.answers is not None
        self.connection.sendall(f"{steps} {how}\n".encode())
        return statistics.median(json.loads(self.answers.readline()))

    def close(self) -> None:
        """Let it end."""
        self.listener.close()
        if self.connection is not None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.connection.close()
            self.connection = None
        if self.answers is not None:
            self.answers.close()


@contextmanager
def bare(path: Path) -> Iterator[Trainee]:
    """A job started by hand with torchrun. It has to come to a good end."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)),
        *(str(SCRIPT), str(path)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment) as torchrun, closing(Trainee(path)) as trainee:
        yield trainee
    assert torchrun.returncode == 0

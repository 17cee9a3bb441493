"""The trainer under real torchrun, every rank under the real shim, from a folder as a host has it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from training import losses

import agent.rank
import trainer

ALONE = ("--standalone",)


class Torchrun:
    """An attempt on one host: torchrun, its ranks, what they leave behind. `node` says where it belongs."""

    def __init__(
        self, folder: Path, ranks: int, *options: str, node: tuple[str, ...] = ALONE, **environment: str
    ) -> None:
        self.folder = folder
        code = folder.parent / "code" / "0123abcd"
        if not code.exists():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(Path(trainer.__file__).parent, code / "trainer", ignore=ignore)
        self.folder.mkdir()
        env = os.environ | {
            "PYTHONPATH": str(code),
            "OMP_NUM_THREADS": "1",
            "ENCAMP_HOME": str(folder.parent / "home"),
            "ENCAMP_RUN_DIR": str(folder.parent / "run"),
            "ENCAMP_ATTEMPT_DIR": str(folder),
        }
        command = [
            *(sys.executable, "-m", "torch.distributed.run", *node, "--max-restarts", "0"),
            *("--nproc-per-node", str(ranks), agent.rank.__file__, "module", "trainer", *options),
        ]
        with (folder / "launcher.log").open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=env | environment, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> int:
        """The exit status."""
        return self.process.wait(90)

    def finish(self) -> Torchrun:
        """Wait for a good end."""
        logs = [self.folder / "launcher.log", *sorted(self.folder.glob("rank*.log"))]
        assert self.wait() == 0, "".join(log.read_text() for log in logs if log.exists())
        return self

    def end(self) -> None:
        """Leave no process behind. The ranks have sessions of their own, and are known by their records."""
        for record in self.folder.glob("rank*/rank.json"):
            if self.process.poll() is None:
                try:
                    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    pass
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def rank(self, rank: int) -> Path:
        return self.folder / f"rank{rank}"

    def log(self, rank: int) -> str:
        path = self.folder / f"rank{rank}.log"
        return path.read_text() if path.exists() else ""

    def step(self) -> int:
        """The newest step that rank 0 has reported."""
        path = self.rank(0) / "progress.jsonl"
        return max(losses(self.rank(0)), default=0) if path.exists() else 0

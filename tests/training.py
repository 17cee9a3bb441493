"""What tests of the trainer share: training in this process, what it reported, and a loop to compare with.

torch is imported where it is used: this file is loaded for all tests.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer import contract
from trainer.batches import Order
from trainer.config import parse

JOBS = Path(__file__).parent / "jobs"


def job(name: str) -> str:
    """The path of a job file of the tests."""
    return str(JOBS / f"{name}.py")


def records(rank_dir: Path) -> list[dict[str, Any]]:
    """Everything that a rank reported."""
    return [json.loads(line) for line in (rank_dir / "progress.jsonl").read_text().splitlines()]


def losses(rank_dir: Path) -> dict[int, float]:
    """Step -> loss, as a rank reported them."""
    return {entry["step"]: entry["loss"] for entry in records(rank_dir) if "loss" in entry}


def reference(
    task_name: str, *options: str, global_batch: int, skip: Collection[int] = ()
) -> dict[int, float]:
    """The losses of the plainest training there is: one process, and the whole global batch at once.

    Steps in `skip` change no weight.
    """
    import torch

    from trainer.schedule import learning_rate_share

    cfg = parse(["--task", task_name, *options])
    task = contract.load(task_name)
    torch.manual_seed(cfg.seed)
    model = task.build_model(cfg)
    dataset = task.build_dataset(cfg, "train")
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": cfg.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    order = Order(len(dataset), cfg.seed)
    result = {}
    for step in range(1, cfg.steps + 1):
        samples = range((step - 1) * global_batch, step * global_batch)
        batch = torch.utils.data.default_collate([dataset[order[sample]] for sample in samples])
        total, count = task.loss(model(batch[0]), batch)
        mean = total / count
        optimizer.zero_grad()
        mean.backward()
        if cfg.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
        share = learning_rate_share(step, warmup=cfg.warmup_steps, steps=cfg.steps)
        for group in optimizer.param_groups:
            group["lr"] = cfg.learning_rate * share
        if step not in skip:
            optimizer.step()
        result[step] = mean.item()
    return result


class Trainings:
    """Runs the trainer in this process, each time with a folder of its own for what the rank reports."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.count = 0
        monkeypatch.setenv("ENCAMP_HOME", str(folder / "home"))
        monkeypatch.setenv("ENCAMP_RUN_DIR", str(folder / "run"))
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "JOB_FAULT"):
            monkeypatch.delenv(name, raising=False)

    @property
    def rank_dir(self) -> Path:
        """Of the newest run."""
        return self.folder / f"rank-{self.count}"

    @property
    def checkpoints(self) -> Path:
        """Where all of these runs keep theirs, unless told otherwise."""
        return self.folder / "run" / "checkpoints"

    def __call__(self, *options: str, **environment: str) -> dict[int, float]:
        """Train, and return the losses by step. `environment` is for this run only."""
        from trainer.run import run

        self.count += 1
        self.rank_dir.mkdir()
        with self.monkeypatch.context() as patch:
            patch.setenv("ENCAMP_RANK_DIR", str(self.rank_dir))
            for name, value in environment.items():
                patch.setenv(name, value)
            run(parse(["--log-every", "1", *options]))
        return losses(self.rank_dir)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainings]:
    """Training in this process; the signal handlers and the process group are as before at the end."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    path = sys.path[:]
    yield Trainings(tmp_path, monkeypatch)
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.path[:] = path
    if torch.distributed.is_initialized():  # a run that ended by an exception leaves it to the process' end
        torch.distributed.destroy_process_group()


@pytest.fixture(params=["host looks at once", "host looks a step late"])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let the loop take its decisions as it does on a CPU, or as on a GPU."""
    from trainer.loop import Loop
    from trainer.readback import Readback

    late = request.param != "host looks at once"
    if late:

        def start(self: Any, *arguments: Any) -> None:
            original(self, *arguments)
            assert self.strategy.can_skip
            self.readback = Readback(1)

        original = Loop.__init__
        monkeypatch.setattr(Loop, "__init__", start)
    return late

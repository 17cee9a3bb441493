"""Training over Horovod, in a Python that was built for it: the losses of one process, and all ways to end.

ENCAMP_TESTS_HOROVOD names that Python, as `make heavy` does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from parity import BATCHES, QUICK, RAGGED, STEPS, WHOLE, worst
from ranks import together
from training import job, losses, records, reference
from waiting import wait_until

import agent.process_launcher
import agent.rank
import trainer

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

SECONDS = 200
"""How long a run may take: all cores may be at something else."""

SCRIPT = """
import torch
import horovod.torch as hvd
hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4) * (1 + hvd.rank())).square().mean().backward()
    optimizer.step()
alike = hvd.allgather(model.weight.detach())
print("size", hvd.size(), "local", hvd.local_size(), "alike", bool((alike == alike[0]).all()), flush=True)
"""


@pytest.fixture(scope="module")
def python() -> str:
    path = os.environ.get("ENCAMP_TESTS_HOROVOD", "")
    if not path:
        pytest.skip("ENCAMP_TESTS_HOROVOD names no Python with Horovod")
    return path


class Run:
    """Our launcher with ranks of the trainer, or of a script, under the real shim: one host of a run."""

    def __init__(
        self, python: str, folder: Path, program: tuple[str, ...], ranks: int = 2, node: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        code = folder.parent / "code" / "0123abcd"
        if not code.exists():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(Path(trainer.__file__).parent, code / "trainer", ignore=ignore)
        folder.mkdir()
        env = os.environ | {
            "PYTHONPATH": str(code),
            "OMP_NUM_THREADS": "1",
            "ENCAMP_HOME": str(folder.parent / "home"),
            "ENCAMP_RUN_DIR": str(folder.parent / "run"),
            "ENCAMP_ATTEMPT_DIR": str(folder),
        }
        command = [
            *(python, agent.process_launcher.__file__, "horovod", "--nproc", str(ranks)),
            *("--interface", "lo", *node, "--", agent.rank.__file__, *program),
        ]
        with (folder / "launcher.log").open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> int:
        """The exit status."""
        return self.process.wait(SECONDS)

    def finish(self) -> Run:
        """Wait for a good end."""
        assert self.wait() == 0, self.said()
        return self

    def said(self) -> str:
        """All that launcher and ranks have said."""
        logs = [self.folder / "launcher.log", *sorted(self.folder.glob("rank*.log"))]
        return "".join(log.read_text() for log in logs if log.exists())

    def rank(self, rank: int) -> Path:
        return self.folder / f"rank{rank}"

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


class Runs:
    """Makes runs and ends them."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python = python
        self.folder = folder
        self.made: list[Run] = []

    def script(self, text: str, ranks: int = 2, node: tuple[str, ...] = ()) -> Run:
        """Start a script of the user's."""
        path = self.folder / "script.py"
        path.write_text(text)
        self.made.append(
            Run(self.python, self.folder / f"{len(self.made)}", ("script", str(path)), ranks, node)
        )
        return self.made[-1]

    def train(self, *options: str, ranks: int = 2) -> Run:
        """Start a training."""
        program = ("module", "trainer", "--strategy", "horovod", "--log-every", "1", *options)
        self.made.append(Run(self.python, self.folder / f"{len(self.made)}", program, ranks))
        return self.made[-1]


@pytest.fixture
def runs(python: str, tmp_path: Path) -> Iterator[Runs]:
    made = Runs(python, tmp_path)
    yield made
    for run in made.made:
        run.end()


@pytest.mark.parametrize(("ranks", "batch"), [(2, RAGGED), (2, WHOLE), (4, RAGGED), (1, RAGGED)])
def test_the_losses_are_those_of_one_process(ranks: int, batch: str, runs: Runs) -> None:
    options, size = BATCHES[batch]
    run = runs.train("--task", job("stack"), *QUICK, *options, "--eval-every", "7", ranks=ranks).finish()
    curves = [losses(run.rank(rank)) for rank in range(ranks)]
    assert worst(curves[0], reference(job("stack"), *QUICK, *options, global_batch=size)) < 2e-4
    assert all(curve == curves[0] for curve in curves)
    assert curves[0][STEPS] < curves[0][1] - 0.2
    assert len([entry for entry in records(run.rank(0)) if "eval_right" in entry]) == 2


def test_gradients_in_fewer_bytes_still_learn(runs: Runs) -> None:
    options, size = BATCHES[RAGGED]
    compressed = ("--gradient-compression", "fp16", "--bucket-mb", "1")
    run = runs.train("--task", job("stack"), *QUICK, *options, *compressed).finish()
    curve = losses(run.rank(0))
    assert worst(curve, reference(job("stack"), *QUICK, *options, global_batch=size)) < 2e-2
    assert curve != losses(runs.train("--task", job("stack"), *QUICK, *options).finish().rank(0))


def test_it_goes_on_from_the_checkpoint_of_another_and_another_from_its_own(
    runs: Runs, tmp_path: Path
) -> None:
    from parity import train

    options = ("--task", job("stack"), "--steps", "6", "--warmup-steps", "2", "--learning-rate", "0.01")
    options += ("--log-every", "1", "--global-batch", "12", "--micro-batch", "3", "--checkpoint-every", "4")
    expected = reference(job("stack"), *options, global_batch=12)
    there = ("--checkpoint-dir", str(tmp_path / "checkpoints"))
    curve = together(2, train, 2, tmp_path, (*options, *there, "--strategy", "fsdp"), 2)[0]
    assert list(curve) == [1, 2]
    run = runs.train(*options, *there, "--steps", "4").finish()
    assert list(losses(run.rank(0))) == [3, 4]
    curve |= losses(run.rank(0))
    curve |= together(1, train, 1, tmp_path, (*options, *there, "--strategy", "ddp"))[0]
    # The learning rate of the second part is that of a shorter run.
    assert (
        worst({step: curve[step] for step in (1, 2, 3)}, {step: expected[step] for step in (1, 2, 3)}) < 1e-5
    )
    assert list(curve) == [1, 2, 3, 4, 5, 6]


def test_a_stop_ends_all_ranks_at_the_same_step(runs: Runs) -> None:
    run = runs.train("--task", job("stack"), *QUICK, "--steps", "100000", "--warmup-steps", "3")
    progress = run.rank(0) / "progress.jsonl"
    wait_until(lambda: progress.exists() and len(losses(run.rank(0))) > 2, SECONDS, "it trains")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert max(losses(run.rank(0))) == max(losses(run.rank(1)))
    assert "leaving with a checkpoint" in run.said()


def test_a_script_of_horovod_s_runs_as_it_is(runs: Runs) -> None:
    run = runs.script(SCRIPT).finish()
    for rank in (0, 1):
        assert (run.folder / f"rank{rank}.log").read_text().endswith("size 2 local 2 alike True\n"), (
            run.said()
        )


def test_two_hosts(runs: Runs) -> None:
    port = agent.process_launcher.free_ports(1)[0]
    shared = ("--nodes", "2", "--address", "127.0.0.1", "--port", str(port))
    both = [runs.script(SCRIPT, 2, (*shared, "--node", str(node))) for node in (1, 0)]
    for run in both:
        run.finish()
    assert all(run.said().count("size 4 local 2 alike True\n") == 2 for run in both), both[0].said()


def test_a_rank_that_dies_ends_the_run(runs: Runs) -> None:
    run = runs.script(SCRIPT.replace("alike =", "import os, sys\nif hvd.rank(): os._exit(9)\nalike =", 1))
    assert run.wait() == 1
    assert "exitcode  : 9" in run.said()


def test_what_it_cannot_compress_is_refused(runs: Runs) -> None:
    run = runs.train("--task", job("stack"), *QUICK, "--gradient-compression", "bf16")
    assert run.wait() == 1
    assert "--gradient-compression bf16 is not there under --strategy horovod: use fp16" in run.said()

"""Checkpoints that are written while training goes on: what is in them, who waits for whom, how they end."""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import together
from training import Trainings, job, records

from trainer import contract, places, saving, strategies
from trainer.checkpoint import Checkpoints
from trainer.config import parse
from trainer.errors import CheckpointError, NonFiniteError
from trainer.folder import CheckpointFolder, Position
from trainer.loop import Loop
from trainer.saving import Save
from trainer.world import World

OPTIONS = ("--task", job("faults"), "--micro-batch", "4", "--log-every", "100")


class Gate:
    """Holds up the last part of every save until it is opened, and notes what happens in which order."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.events: list[str] = []

    def on(self, text: str) -> None:
        """Note it."""
        self.events.append(text)

    def before(self, patch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[..., None]) -> None:
        """Let `action` be called with the arguments of a method before the method is."""
        original = getattr(owner, name)

        def called(*arguments: Any, **named: Any) -> Any:
            action(*arguments, **named)
            return original(*arguments, **named)

        patch.setattr(owner, name, called)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, train: Trainings) -> Iterator[Gate]:
    result = Gate()

    def complete(_self: CheckpointFolder, record: Any, _more: Any) -> None:
        assert result.opened.wait(60)
        result.on(f"complete {record.position.step}")

    result.before(monkeypatch, CheckpointFolder, "complete", complete)
    result.before(monkeypatch, Loop, "_step", lambda _self, step: result.on(f"step {step}"))
    yield result
    result.opened.set()


def open_at_step(gate: Gate, patch: pytest.MonkeyPatch, wanted: int) -> None:
    def step(_self: Loop, number: int) -> None:
        if number == wanted:
            gate.opened.set()

    gate.before(patch, Loop, "_step", step)


def open_when_waited_for(gate: Gate, patch: pytest.MonkeyPatch) -> None:
    def wait(save: Save) -> None:
        if save.step == 2:
            gate.on("waited for")
        gate.opened.set()

    gate.before(patch, Save, "wait", wait)


def folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# --- in one process ----------------------------------------------------------------------------------------


def test_training_goes_on_while_a_checkpoint_of_its_step_is_written(
    train: Trainings, gate: Gate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    open_at_step(gate, monkeypatch, 6)
    whole = train(*OPTIONS, "--log-every", "1", "--steps", "7", "--checkpoint-every", "3")
    assert gate.events.index("step 5") < gate.events.index("complete 3")
    said = capsys.readouterr().out
    assert said.count(f"saved {train.checkpoints}/step-3 in ") == 1
    assert said.count("; training waited ") == 3
    # Only while training is held up: to copy, and for the one before it.
    assert {entry["step"] for entry in records(train.rank_dir) if entry["phase"] == "save"} == {3, 6, 7}
    for name in ("step-6", "step-7"):
        (train.checkpoints / name / "complete.json").unlink()
    assert train(*OPTIONS, "--log-every", "1", "--steps", "7") == {s: whole[s] for s in range(4, 8)}


def test_the_next_waits_for_one_that_is_not_done_and_says_so_once(
    train: Trainings, gate: Gate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    open_when_waited_for(gate, monkeypatch)
    train(*OPTIONS, "--steps", "9", "--checkpoint-every", "2", "--keep-checkpoints", "9")
    assert gate.events.index("waited for") < gate.events.index("complete 2") < gate.events.index("step 5")
    said = capsys.readouterr().out
    assert said.count("the checkpoint of step 2 is still being written: waiting for it") == 1
    assert [entry for entry in records(train.rank_dir) if entry["phase"] == "save" and entry["step"] == 4]
    assert folders(train.checkpoints) == ["step-2", "step-4", "step-6", "step-8", "step-9"]
    assert said.count("saved ") == 5


def test_a_stop_waits_for_it(train: Trainings, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    open_when_waited_for(gate, monkeypatch)
    train(*OPTIONS, "--steps", "50", "--checkpoint-every", "2", JOB_FAULT="stop", JOB_AT="3")
    assert gate.events[-3:] == ["waited for", "complete 2", "complete 4"]
    assert folders(train.checkpoints) == ["step-2", "step-4"]


def test_a_loss_that_is_not_a_number_waits_for_it(
    train: Trainings, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_when_waited_for(gate, monkeypatch)
    with pytest.raises(NonFiniteError, match="the last checkpoint is that of step 2"):
        train(*OPTIONS, "--steps", "50", "--checkpoint-every", "2", JOB_FAULT="nan", JOB_AT="3")
    assert gate.events[-2:] == ["waited for", "complete 2"]


def test_a_job_that_fails_lets_it_come_to_its_end(
    train: Trainings, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_when_waited_for(gate, monkeypatch)
    with pytest.raises(ZeroDivisionError):
        train(*OPTIONS, "--steps", "50", "--checkpoint-every", "2", JOB_FAULT="raise", JOB_AT="3")
    assert (train.checkpoints / "step-2" / "complete.json").exists()


def test_training_waits_if_told_to(train: Trainings, gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    gate.opened.set()
    train(*OPTIONS, "--steps", "5", "--checkpoint-every", "2", "--async-checkpoints", "no")
    assert gate.events == [
        "step 1", "step 2", "complete 2", "step 3", "step 4", "complete 4", "step 5", "complete 5",
    ]  # fmt: skip
    assert capsys.readouterr().out.count("saved ") == 3


@pytest.mark.parametrize("way", ["yes", "no"])
def test_one_that_fails_leaves_nothing_and_the_one_before_it(
    train: Trainings, way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = {4, 9}

    def complete(_self: CheckpointFolder, record: Any, _more: Any) -> None:
        if record.position.step in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    Gate().before(monkeypatch, CheckpointFolder, "complete", complete)
    options = (*OPTIONS, "--checkpoint-every", "2", "--async-checkpoints", way)
    train(*options, "--steps", "5", "--keep-checkpoints", "1")
    said = capsys.readouterr().out
    assert "no checkpoint at step 4" in said
    assert f"{train.checkpoints}/step-4 could not be written: [Errno 28] No space left on device" in said
    assert folders(train.checkpoints) == ["step-5"]
    with pytest.raises(CheckpointError, match="step-9 could not be written"):
        train(*options, "--steps", "9")
    assert folders(train.checkpoints) == ["step-5", "step-6", "step-8"]


def test_a_disk_that_is_full_in_the_middle_of_a_file_is_told_as_such() -> None:
    error = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")
    assert saving._reason(error) == "a file could not be written to its end: is the disk full?"
    assert saving._reason(OSError("No space")) == "No space"


def test_some_are_kept_for_good(train: Trainings) -> None:
    options = (*OPTIONS, "--checkpoint-every", "1", "--keep-checkpoints", "2", "--keep-every", "3")
    train(*options, "--steps", "8")
    assert folders(train.checkpoints) == ["step-3", "step-6", "step-7", "step-8"]
    (train.checkpoints / "step-3" / "complete.json").unlink()  # only complete ones are
    train(*options, "--steps", "10")
    assert folders(train.checkpoints) == ["step-10", "step-6", "step-9"]


DIES = """
import os, signal, sys
sys.path.insert(0, os.path.dirname(os.environ["JOB_FAULTS"]))
from faults import *
from trainer.folder import CheckpointFolder

complete = CheckpointFolder.complete

def die(self, record, more):
    if record.position.step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    complete(self, record, more)

CheckpointFolder.complete = die
"""


def test_a_process_that_is_killed_while_it_writes_goes_on_from_the_one_before(
    train: Trainings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    command = [sys.executable, "-m", "trainer", "--task", str(tmp_path / "dies.py"), *OPTIONS[2:]]
    env = os.environ | {"JOB_FAULTS": job("faults"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--steps", "9", "--checkpoint-every", "2"], env=env, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert not (train.checkpoints / "step-4" / "complete.json").exists()
    assert list((train.checkpoints / "step-4").glob("*.distcp"))
    train(*OPTIONS, "--steps", "6", "--checkpoint-every", "3")
    said = capsys.readouterr().out
    assert f"ignoring {train.checkpoints}/step-4: it was not written to its end" in said
    assert f"resumed from {train.checkpoints}/step-2: going on with step 3" in said
    assert folders(train.checkpoints) == ["step-2", "step-3", "step-6"]


# --- among ranks -------------------------------------------------------------------------------------------


class Rank:
    """Strategy and checkpoints of one of the ranks of a host."""

    def __init__(self, rank: int, ranks: int, folder: Path, strategy: str) -> None:
        world = World(rank=rank, local_rank=rank, size=ranks, device=torch.device("cpu"), local_size=ranks)
        cfg = parse(["--task", job("stack"), "--strategy", strategy, "--micro-batch", "4"])
        task = contract.load(job("stack"))
        torch.manual_seed(5)
        self.samples = task.build_dataset(None, "train")
        self.accumulation = ranks if strategy == "pp" else 1
        self.strategy = strategies.find(strategy)(task, cfg, world, self.accumulation, self.samples)
        found = places.find(folder, world)
        self.checkpoints = Checkpoints(folder, keep=3, places=found, say=lambda _: None)

    def step(self) -> None:
        batches = [
            torch.utils.data.default_collate(self.samples[4 * n : 4 * n + 4])
            for n in range(self.accumulation)
        ]
        totals = self.strategy.accumulate(batches, torch.zeros(()))
        self.strategy.finish_gradients(totals[1])
        self.strategy.apply(None)

    def state(self) -> dict[str, Any]:
        """What there is, whole: weights by name and the optimizer's state by name and kind."""
        parts = self.strategy.state()[0]
        moments = {
            f"{name} {kind}": value
            for name, kinds in parts["optimizer"]["state"].items()
            for kind, value in kinds.items()
        }
        return {
            name: getattr(value, "full_tensor", lambda value=value: value)().tolist()
            for name, value in (parts["model"] | moments).items()
        }


def at(step: int) -> Position:
    return Position(step=step, samples=step, seed=0, dataset_length=40)


def save_and_step(rank: int, ranks: int, folder: Path, strategy: str) -> tuple[dict[str, Any], int]:
    """What is to be in the checkpoint, as far as this rank has it, and how many numbers it has copied."""
    here = Rank(rank, ranks, folder, strategy)
    here.step()
    state = here.state()
    for step in (1, 2):
        save = here.checkpoints.save(here.strategy, at(step), background=True)
        if step == 1:
            save.result()
    here.step()
    save.result()
    assert here.state() != state
    return state, sum(buffer.numel() for buffer in here.checkpoints.saver._buffers.values())


def load(rank: int, folder: Path) -> dict[str, Any]:
    here = Rank(rank, 1, folder, "ddp")
    here.step()
    newest = here.checkpoints.newest()
    assert newest is not None and newest.step == 2
    here.checkpoints.load(here.strategy, newest)
    return here.state()


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("ddp", 1), ("ddp", 4), ("fsdp", 2), ("hsdp", 4), ("tp", 2), ("fsdp+tp", 4), ("pp", 2), ("zero3", 2)],
)
def test_it_holds_the_state_at_its_step_under_each_strategy(
    tmp_path: Path, strategy: str, ranks: int
) -> None:
    if strategy == "zero3" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("needs DeepSpeed")
    saved: dict[str, Any] = {}
    copied = []
    for state, count in together(ranks, save_and_step, ranks, tmp_path, strategy):
        saved |= state
        copied.append(count)
    [loaded] = together(1, load, tmp_path)
    assert loaded == saved
    # Together they have copied it once, and each its share.
    assert sum(copied) == sum(torch.tensor(value).numel() for value in saved.values())
    assert max(copied) < 1.5 * sum(copied) / ranks


def one_fails(rank: int, ranks: int, folder: Path) -> list[Any]:
    here = Rank(rank, ranks, folder, "ddp")
    here.step()
    results: list[Any] = []
    for step in (1, 2, 3):
        if rank == 1:
            # Its files go where none can be: as on a disk that is full for this rank alone.
            import torch.distributed.checkpoint.filesystem as filesystem

            original = filesystem._write_files_from_queue

            def full(*arguments: Any, **named: Any) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            filesystem._write_files_from_queue = full if step == 2 else original
        save = here.checkpoints.save(here.strategy, at(step), background=True)
        if rank == 1 and step == 2:
            save.wait()
            filesystem._write_files_from_queue = original
        here.step()
        try:
            results.append(save.result() > 0)
        except CheckpointError as error:
            results.append(str(error))
    return results


def test_a_failure_of_one_rank_is_one_of_all(tmp_path: Path) -> None:
    failed = f"{tmp_path}/step-2 could not be written: [Errno 28] No space left on device"
    assert together(2, one_fails, 2, tmp_path) == [[True, failed, True]] * 2
    assert folders(tmp_path) == ["step-1", "step-3"]

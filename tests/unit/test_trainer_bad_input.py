"""What the trainer says to input that cannot work, as people see it: one line that says what to do instead.

Faults of one part are tested with that part: see the tests of strategies, batches and checkpoints.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from parity import train as train_rank
from ranks import together
from training import job

from trainer import leaving
from trainer.__main__ import main
from trainer.errors import TrainerError

HEAD = """
import torch

def build_model(cfg):
    return torch.nn.Linear(4, 1)

def build_dataset(cfg, split):
    return [(torch.rand(4), torch.rand(1)) for _ in range(100)]

def loss(output, batch):
    return torch.nn.functional.mse_loss(output, batch[-1], reduction="sum"), batch[-1].numel()
"""


def said(rank: int, ranks: int, folder: Path, options: tuple[str, ...]) -> str:
    """What a rank of a group says to these options instead of training."""
    try:
        train_rank(rank, ranks, folder, options, 1)
    except TrainerError as error:
        return str(error)
    return "it trained"


def refused(ranks: int, folder: Path, *options: str) -> str:
    """What all the ranks say, and the same."""
    words = together(ranks, said, ranks, folder, ("--steps", "2", *options))
    assert len(set(words)) == 1
    return str(words[0])


@pytest.mark.torch
@pytest.mark.parametrize(
    ("ranks", "options", "expected"),
    [
        (4, ("--strategy", "tp", "--size", "small"), "4 ranks cannot share the 6 heads"),
        (3, ("--strategy", "tp"), "3 ranks cannot share the 4 heads"),
        (4, ("--strategy", "hsdp", "--shard-ranks", "3"), "two copies or more, each of two ranks or more"),
        (3, ("--strategy", "fsdp+tp"), "needs two groups or more of 2 ranks"),
        (3, ("--strategy", "pp"), "too few for 3 stages; start fewer ranks"),
        (2, ("--strategy", "pp", "--accumulation", "1"), "on 2 ranks needs 2 micro-batches a step or more"),
        (2, ("--strategy", "dp"), "one process for all GPUs of a host, and there are 2 ranks: start one"),
        (2, ("--global-batch", "7"), "--global-batch 7 cannot be shared equally by 2 ranks: use 6 or 8"),
        (2, ("--strategy", "tp", "--task", job("ragged")), "has no TP_PLAN, which says what layers ranks"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_ranks_refuse_together_before_any_waits_for_another(
    tmp_path: Path, ranks: int, options: tuple[str, ...], expected: str
) -> None:
    assert expected in refused(ranks, tmp_path, "--sequence-length", "16", *options)


@pytest.mark.torch
def test_heads_that_ranks_cannot_share_are_refused_with_what_can_be(tmp_path: Path) -> None:
    words = ("--sequence-length", "16", "--strategy", "fsdp+tp", "--size", "small")
    assert refused(8, tmp_path, *words, "--tensor-parallel", "4").endswith(
        "use 2 or 3 or 6 ranks for a layer, or --size tiny or medium or large"
    )


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize(
    ("more", "options", "expected"),
    [
        ("", ("--strategy", "fsdpp"), "--strategy fsdpp: no such strategy; did you mean fsdp"),
        ("", ("--strategy", "dpp"), "did you mean pp or dp or ddp?"),
        ("", ("--precision", "fp16"), "--precision fp16"),
        ("", ("--strategy", "tp"), "this is one rank: use ddp"),
        (
            "",
            ("--global-batch", "6", "--micro-batch", "2", "--accumulation", "2"),
            "leave one of the three out",
        ),
        ("def build_dataset(cfg, split): return []", (), "build_dataset(cfg, 'train') returned no samples"),
        ("def build_model(cfg): return torch.nn.Identity()", (), "a model without parameters to train"),
        ("def build_model(cfg:", (), "job.py, line "),
        ("import a_package_that_there_is_not", (), "imports a_package_that_there_is_not, which"),
        ("del loss", (), "loss(output, batch) is missing"),
        ("raise SystemExit(0)", (), "ended the process by sys.exit(0) before the first step: a job's"),
        ("import os; os._exit(0)", (), "ended the process by os._exit(0) before the first step"),
        ("def build_model(cfg): exit()", (), "ended the process by sys.exit() before the first step"),
        (
            "def build_dataset(cfg, split): return {'train': [1], 'test': [2]}",
            (),
            "'train', 'test', and",
        ),
        (
            "def loss(output, batch): return (output - batch[-1]).sum(), -3",
            (),
            "the second says how many losses were summed, and it is -3",
        ),
        (
            "def evaluate(output, batch): return {'loss': (1, 1)}",
            ("--eval-every", "1"),
            "evaluate(output, batch) returned 'loss', which is what an evaluation reports",
        ),
    ],
)
def test_what_people_read_is_no_traceback(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: str,
    options: tuple[str, ...],
    expected: str,
) -> None:
    (tmp_path / "job.py").write_text(f"{HEAD}\n{more}\n")
    words = main(["--task", str(tmp_path / "job.py"), "--steps", "2", "--device", "cpu", *options])
    assert words is not None
    assert words.startswith("trainer: error: ")
    assert expected in words
    assert "Traceback" not in words
    assert "eval-every" in "".join(options) or "step 1/" not in capsys.readouterr().out


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize("way", ["sys.exit(0)", "os._exit(0)"])
def test_a_job_that_ends_the_process_has_not_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    more = f"""
import os, sys
steps = []
def forward(model, batch):
    steps.append(1)
    if len(steps) == 3:
        {way}
    return model(batch[0])
"""
    (tmp_path / "job.py").write_text(HEAD + more)
    leave = os._exit
    words = main(["--task", str(tmp_path / "job.py"), "--steps", "4", "--device", "cpu"])
    assert words is not None
    assert f"job.py ended the process by {way} before step 3 of 4: " in words
    assert "finished" not in capsys.readouterr().out
    assert os._exit is leave


def test_processes_of_a_job_may_end_as_they_like() -> None:
    with leaving.watched("job.py", 4):
        child = os.fork()
        if child == 0:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.torch
@pytest.mark.parametrize("made", ["torch.optim.Adafactor(model.parameters())", "Odd(model.parameters())"])
def test_an_optimizer_that_needs_whole_parameters_is_named(tmp_path: Path, made: str) -> None:
    odd = """
class Odd(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(torch.ones(parameter.shape))
"""
    path = tmp_path / "job.py"
    path.write_text(f"{HEAD}{odd}\ndef build_optimizer(model, cfg): return {made}\n")
    words = refused(2, tmp_path, "--task", str(path), "--strategy", "fsdp")
    assert f"the optimizer {made.partition('(')[0].rpartition('.')[2]} needs whole parameters" in words
    assert "--strategy fsdp each rank has a part: use --strategy ddp, or another optimizer" in words


@pytest.mark.torch
def test_state_that_a_pipeline_would_lose_is_refused(tmp_path: Path) -> None:
    more = """
class Counting(torch.nn.Linear):
    def get_extra_state(self): return 3
    def set_extra_state(self, state): pass

def build_model(cfg): return torch.nn.Sequential(Counting(4, 4), torch.nn.Linear(4, 1))
"""
    path = tmp_path / "job.py"
    path.write_text(HEAD + more)
    assert "job.py: 0 has get_extra_state, whose state is lost" in refused(
        2, tmp_path, "--task", str(path), "--strategy", "pp"
    )


@pytest.mark.usefixtures("train")
def test_a_dataset_shorter_than_a_step_trains_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.py").write_text(HEAD)
    options = ("--task", str(tmp_path / "job.py"), "--steps", "2", "--device", "cpu")
    assert main([*options, "--global-batch", "128"]) is None
    out = capsys.readouterr().out
    assert "a step takes 128 samples and there are 100: it sees some more than once" in out
    assert "step 2/2" in out


@pytest.mark.usefixtures("train")
def test_a_job_in_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    words = main(["--task", "no/such/job.py", "--device", "cpu"])
    assert words is not None
    assert words.startswith("trainer: error: --task no/such/job.py: no such file in ")

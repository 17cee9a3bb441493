"""`encamp export` as a user has it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from e2e.camp import BEHAVE, Camp
from ssh.sshd import Sshd

pytestmark = [pytest.mark.slow, pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(240)]


def test_the_weights_of_a_run_come_as_one_file(newcomer: Camp, box: Sshd, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    newcomer.add(box)
    settings = {
        "run.nproc_per_node": "1",
        "run.python": sys.executable,
        "train.checkpoint_every": "2",
        "train.steps": "5",
        "train.sequence_length": "32",
        "train.micro_batch": "1",
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    run = newcomer.run("launch", "gpt-tiny", "--on", "box", *words, "--json").json["run"]
    newcomer.run("wait", run)
    folder = box.home / ".encamp" / "runs" / run

    here = tmp_path / "here"
    here.mkdir()
    told = newcomer.run("export", run, "--to", str(here), "--json").json
    file = here / f"{run}-step-5.safetensors"
    assert (told["run"], told["host"], told["step"], told["file"]) == (run, "box", 5, str(file))
    assert told["bytes"] == file.stat().st_size
    weights = load_file(file)
    assert len(weights) == told["tensors"]
    assert sum(value.numel() for value in weights.values()) == told["parameters"]
    assert list((folder / "exports").iterdir()) == []

    done = newcomer.run("export", run, "--step", "4", "--to", str(here / "mine.pt"))
    assert done.out.decode().startswith(f"{here}/mine.pt: step 4, {told['tensors']} tensors, ")
    assert (here / "mine.pt").is_file()
    refused = newcomer.run("export", run, "--to", str(file), code=None)
    assert refused.code == 0, "an equal file is kept"
    file.write_bytes(b"mine")
    assert "exists here already" in newcomer.run("export", run, "--to", str(file), code=2).err
    assert "ends in .safetensors" in newcomer.run("export", run, "--to", "model.bin", code=2).err

    refused = newcomer.run("export", run, "--step", "3", code=1)
    assert f"There is no complete checkpoint of step 3 in the folder of {run}." in refused.err
    (folder / "checkpoints" / "step-5" / "__0_0.distcp").write_bytes(b"half")
    refused = newcomer.run("export", run, "--to", str(here / "no.pt"), code=1)
    assert "box: " in refused.err and "step-5 cannot be read" in refused.err
    assert not (here / "no.pt").exists()


def test_a_run_with_a_checkpoint_folder_of_its_own(newcomer: Camp, box: Sshd, tmp_path: Path) -> None:
    newcomer.add(box)
    settings = {
        "run.nproc_per_node": "1",
        "run.python": sys.executable,
        "run.cwd": str(tmp_path),
        "train.checkpoint_dir": "kept/here",
        "train.steps": "2",
        "train.sequence_length": "32",
        "train.micro_batch": "1",
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    run = newcomer.run("launch", "gpt-tiny", "--on", "box", *words, "--json").json["run"]
    newcomer.run("wait", run)
    told = newcomer.run("export", run, "--to", str(tmp_path), "--json").json
    assert (told["step"], told["file"]) == (2, str(tmp_path / f"{run}-step-2.safetensors"))
    assert newcomer.run("export", run, "--step", "2", "--to", str(tmp_path / "two.pt"), code=0)
    assert "there is no checkpoint" in newcomer.run("export", run, "--step", "1", code=1).err


def test_only_the_trainers_checkpoints_can_be_exported(newcomer: Camp, box: Sshd) -> None:
    newcomer.add(box)
    run = newcomer.launch(BEHAVE, "say=hello")
    newcomer.run("wait", run)
    assert "no complete checkpoint" in newcomer.run("export", run, code=1).err
    step = box.home / ".encamp" / "runs" / run / "checkpoints" / "step-7"
    step.mkdir(parents=True)
    (step / "complete.json").write_text("{}")
    assert "whose checkpoints only you know" in newcomer.run("export", run, code=1).err

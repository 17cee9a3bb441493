"""A restart says what it means before it happens, and goes back to an older checkpoint when it is told to."""

from __future__ import annotations

import sys

import pytest
from e2e.camp import Camp, Terminal, log_file
from ssh.sshd import Sshd
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(240)]


def test_going_back_to_an_older_checkpoint(camp: Camp, box: Sshd) -> None:
    settings = {
        "run.nproc_per_node": "1", "run.python": f'"{sys.executable}"', "train.checkpoint_every": "5",
        "train.steps": "100000", "train.keep_checkpoints": "100",
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    run = camp.run("launch", "gpt-tiny", "--on", "box", *words, "--json").json["run"]
    kept = box.home / ".encamp" / "runs" / run / "checkpoints"
    wait_until((kept / "step-15" / "complete.json").exists, 60, "a few checkpoints")
    missing = camp.run("restart", run, "--from", "7", code=2)
    assert "no complete checkpoint of step 7" in missing.err

    terminal = Terminal(camp, "restart", run, "--from", "step-5")
    try:
        terminal.wait("Restart it? (yes/no)")
        assert terminal.sees("Attempt 2: all 1 rank on box stop and restart.")
        assert terminal.sees("It goes on from step-5, complete on box")
        assert terminal.sees("are set aside")
        terminal.type("no\n")
        assert terminal.end()[0] == 1
    finally:
        terminal.close()
    assert camp.status(run)["attempt"] == 1

    told = camp.run("restart", run, "--from", "step-5", "--json").json
    assert (told["attempt"], told["from"]["step"]) == (2, 5)
    assert told["from"]["lost_steps"] >= 10
    log = log_file(box, run, "rank0", attempt=2)
    wait_until(lambda: "going on with step 6" in log.read_text(), 60, log.name)
    assert (kept / "step-15.aside" / "complete.json").exists()
    camp.run("stop", run, "--grace", "0")

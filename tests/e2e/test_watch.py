"""A run that hangs once is watched over: it is restarted without anybody, and its user is told."""

from __future__ import annotations

import json

import pytest
from e2e.camp import SCRIPTS, Camp

pytestmark = [pytest.mark.slow, pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(240)]


def test_a_run_that_hangs_once_is_restarted_and_finishes(camp: Camp) -> None:
    run = camp.launch(SCRIPTS / "steps.py", "60", "hang", "40", grace=1)
    told = camp.folder / "told"
    with camp.start(
        "watch", run, "--on-stall", "restart", "--max-restarts", "2", "--notify", f"cat >> {told}", "--json"
    ) as watch:
        try:
            out, err = watch.communicate(timeout=150)
        except BaseException:
            watch.kill()
            raise
    assert watch.returncode == 0, err
    happened = [json.loads(line) for line in out.splitlines()]
    assert [each["event"] for each in happened] == [
        "watching", "stalled", "restarting", "restarted", "finished",
    ]  # fmt: skip
    stalled = happened[1]
    assert (stalled["run"], stalled["culprits"], stalled["host"]) == (run, [1], "box")
    assert stalled["step"] == 40
    assert "rank 1" in stalled["sentence"]
    assert happened[-1]["attempt"] == 2
    assert [json.loads(line) for line in told.read_text().splitlines()] == happened[1:]
    assert camp.status(run)["state"] == "finished"

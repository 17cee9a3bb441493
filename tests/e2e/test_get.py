"""`encamp get` as a user has it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.camp import BEHAVE, Camp, Terminal
from ssh.sshd import Sshd

from tui.fleet.download import Progress
from tui.transfers import line

pytestmark = pytest.mark.sshd


@pytest.mark.torch
def test_a_checkpoint_and_a_log(
    newcomer: Camp, box: Sshd, terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    newcomer.add(box)
    run = newcomer.launch(BEHAVE, "say=hello")
    newcomer.run("wait", run)
    model = os.urandom(3_000_000)
    step = box.home / ".encamp" / "runs" / run / "checkpoints" / "step-100"
    step.mkdir(parents=True)
    (step / "model.pt").write_bytes(model)
    here = tmp_path / "here"
    here.mkdir()
    got = newcomer.run("get", run, "checkpoints/step-100", str(here), "--json").json
    assert (here / "step-100" / "model.pt").read_bytes() == model
    assert (got["run"], got["host"], got["path"]) == (run, "box", "checkpoints/step-100")
    assert (got["bytes"], got["received_bytes"], got["skipped"]) == (len(model), len(model), [])
    assert got["dest"] == str(here / "step-100")
    assert [file["unchanged"] for file in got["files"]] == [False]
    again = newcomer.run("get", run, "checkpoints/step-100", str(here))
    assert b"1 of them were here already" in again.out
    (here / "step-100" / "model.pt").write_bytes(b"mine")
    assert "--force" in newcomer.run("get", run, "checkpoints/step-100", str(here), code=2).err
    log = terminal("get", run, "attempts/1/rank0.log", str(tmp_path / "new-name.log"))
    assert log.end()[0] == 0
    assert b"hello" in (tmp_path / "new-name.log").read_bytes()
    (step / "passwd").symlink_to("/etc/passwd")
    left = newcomer.run("get", run, "checkpoints", str(here), "--json", code=1)
    assert [entry["path"] for entry in left.json["skipped"]] == ["checkpoints/step-100/passwd"]
    assert "not fetched: checkpoints/step-100/passwd" in left.err
    assert not (here / "checkpoints" / "step-100" / "passwd").exists()
    nothing = newcomer.run("get", run, "nothing", "--json", code=1)
    assert nothing.json["error"]["code"] == "no-file"
    assert newcomer.run("get", run, "../../host.json", code=2).err.startswith("encamp: ")


def test_the_line_that_shows_how_it_goes() -> None:
    assert line(Progress(0), 0.0) == "100 %  0 B of 0 B"
    assert line(Progress(200 * 2**20, 90 * 2**20, 45 * 2**20), 1.5) == (
        "45 %  90.0 M of 200 M  30.0 M/s  3 s left"
    )

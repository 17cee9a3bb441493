"""GPUs of lab hosts: their telemetry, and two users who launch on the same ones at once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from e2e.camp import Camp, Done, ended
from waiting import eventually

from agent import wire
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import Store

from .host import LabHost
from .lab import Lab

pytestmark = pytest.mark.sshd

SCRIPT = """
import os, time
print("rank", os.environ["RANK"], flush=True)
while not os.path.exists("/root/gate"):
    time.sleep(0.05)
"""


async def test_a_host_tells_of_its_gpus(lab: Lab, client_home: Path) -> None:
    host = lab.add(gpus=2)
    session = Session(host.inventory(), Store(), NoPrompts(accept_new_host_key=True))
    task = asyncio.ensure_future(session.run())

    def gpus() -> tuple[wire.GpuSample, ...]:
        sample = session.view.sample
        return sample.gpu.gpus if sample is not None else ()

    try:
        await session.connected(60)
        assert host.gpus is not None
        await eventually(lambda: len(gpus()) == 2)
        host.gpus.set_gpu(1, utilization=77)
        await eventually(lambda: gpus()[1].utilization_percent == 77)
        host.gpus.set_gpu(0, result="lost")
        await eventually(lambda: gpus()[0].state == "lost")
    finally:
        task.cancel()
        await asyncio.wait([task])


def user(folder: Path, name: str, *hosts: LabHost) -> Camp:
    """Somebody who has these hosts, and a profile for all of their GPUs."""
    (folder / name).mkdir()
    camp = Camp(folder / name)
    camp.env["LOGNAME"] = name
    for host in hosts:
        command = f"ssh -p {host.ssh_port} -i {host.key} -o IdentitiesOnly=yes root@{host.address}"
        camp.run("hosts", "add", command, "--name", host.name, "--accept-new-host-key")
    (folder / name / "train.toml").write_text(
        f"[run]\nscript = '/root/train.py'\npython = '{sys.executable}'\nstop_grace_seconds = 1\n"
    )
    return camp


def at_once(camps: list[Camp], on: str) -> list[Done]:
    """All of them launch on `on` in the same moment."""
    started = [camp.start("launch", str(camp.folder / "train.toml"), "--on", on) for camp in camps]
    return [ended(process) for process in started]


@pytest.mark.torch
@pytest.mark.slow
def test_the_second_of_two_users_is_told_who_has_the_gpus(lab: Lab, tmp_path: Path) -> None:
    host = lab.add(gpus=2)
    (host.home / "train.py").write_text(SCRIPT)
    camps = [user(tmp_path, name, host) for name in ("ann", "bob")]
    ended = at_once(camps, "h1")
    assert sorted(done.code for done in ended) == [0, 1], ended
    refused = next(done for done in ended if done.code)
    winner = ("ann", "bob")[next(number for number, done in enumerate(ended) if not done.code)]
    (run,) = camps[0].run("status", "--json").json["runs"]
    assert f"GPU 0, 1 by attempt 1 of {run['id']}, launched by {winner}@" in refused.err
    (host.home / "gate").touch()
    camps[1].run("wait", run["id"])
    again = camps[1].run("launch", str(camps[1].folder / "train.toml"), "--on", "h1", "--json").json
    assert again["world_size"] == 2, "a run that has ended holds nothing"

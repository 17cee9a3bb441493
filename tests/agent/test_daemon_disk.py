"""A full disk, a real one: the agent goes on, says so, and recovers."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_client import AgentHost, Refused

from agent import connect, wire


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB. `filler` in it takes what is left."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "encamp-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small disk, and here not even root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def disk_host(small_disk: Path, fake_torch: Path) -> Iterator[AgentHost]:
    host = AgentHost(str(small_disk / "home"))
    yield host
    host.close()


def fill(disk: Path) -> None:
    with pytest.raises(OSError, match="No space"), (disk / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_a_daemon_starts_again_on_a_full_disk(small_disk: Path, disk_host: AgentHost) -> None:
    first = disk_host.connect()
    fill(small_disk)
    os.kill(first.hello.pid, signal.SIGKILL)
    first.wait()
    viewer = disk_host.connect("--keep")
    assert viewer.hello.host_id == first.hello.host_id
    with pytest.raises(Refused, match="no space") as refusal:
        viewer.request("launch", spec=disk_host.spec("run-a"), actor="ann")
    assert refusal.value.code == "no-space"
    piece = base64.b64encode(b"x" * 8192).decode()
    with pytest.raises(Refused, match="no space") as refusal:
        viewer.request("blob_put", sha256="a" * 64, name="code", size=9999, offset=0, data=piece)
    assert refusal.value.code == "no-space"
    (small_disk / "filler").unlink()
    assert viewer.request("launch", spec=disk_host.spec("run-a"), actor="ann")["attempt"] == 1
    assert viewer.until_run("run-a", "finished")
    assert viewer.expect(wire.Sample).disk


def test_the_first_start_on_a_full_disk_says_so(small_disk: Path, disk_host: AgentHost) -> None:
    fill(small_disk)
    relay = disk_host.relay()
    assert relay.wait() in (connect.EXIT_START, connect.EXIT_HOME)
    complaint = relay.complaint()
    assert "no space" in complaint.lower()
    assert complaint.startswith("encamp: ")
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("stop", [True, False])
def test_a_run_ends_on_a_full_disk(small_disk: Path, disk_host: AgentHost, stop: bool) -> None:
    viewer = disk_host.connect()
    disk_host.launch(viewer, "run-a", "wait")
    fill(small_disk)
    if stop:
        assert viewer.request("stop", run="run-a", actor="ann")["state"] == "stopped"
        assert viewer.until_run("run-a", "stopped").reason.startswith("stopped by ann")
    else:
        (small_disk / "go").touch()
        viewer.until_run("run-a", "finished")
    assert not list(disk_host.attempt_dir("run-a").glob("*.reserve"))

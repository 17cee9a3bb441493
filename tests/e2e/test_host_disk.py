"""A disk that is full on one of two hosts, while code is sent and while a checkpoint is written."""

from __future__ import annotations

import os
import re
import sys

import pytest
from e2e.camp import grown, log_file
from e2e.cluster import Cluster, said
from lab.host import LabHost
from waiting import wait_until

pytestmark = [pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(240)]

SHRINK = """
for try in 1 2 3 4 5 6 7 8 9 10; do
    used=$(df -k --output=used /root/.encamp | tail -n 1)
    mount -o remount,size=$((used + 256))k /root/.encamp && exit
done
exit 1
"""
"""Leaves 256 KiB. What is written meanwhile can be in the way."""


def add_small_disk(cluster: Cluster, name: str, size: str) -> LabHost:
    """Rent a host on which encamp's folder is a file system of that size, as mount takes it."""
    host = cluster.hosts[name] = cluster.lab.add(name)
    host.inside("mkdir", "-p", "/root/.encamp")
    host.inside("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", "/root/.encamp")
    cluster.note_down(cluster.camp, name)
    return host


def test_code_for_which_there_is_no_room_on_one_host(cluster: Cluster) -> None:
    cluster.add("a")
    add_small_disk(cluster, "b", "8m")
    project = cluster.camp.folder / "project"
    project.mkdir()
    (project / "data.bin").write_bytes(os.urandom(12 * 1024**2))
    (project / "train.py").write_text("print('it has room')\n")
    profile = project / "train.toml"
    profile.write_text(
        f'[run]\nscript = "train.py"\nnproc_per_node = 1\npython = "{sys.executable}"\n[code]\npath = "."\n'
    )
    words = ("launch", str(profile), "--on", "a,b")
    refused = cluster.camp.run(*words, code=1)
    assert "free of 8.0 M for /root/.encamp" in refused.err
    refused = cluster.camp.run(*words, "--force", "it is enough", code=1)
    assert re.search(r"encamp: b: .*space", refused.err)
    assert "Make room there" in refused.err
    assert cluster.folders("a") == []
    assert cluster.runs() == []
    cluster.hosts["b"].inside("mount", "-o", "remount,size=64m", "/root/.encamp")
    assert cluster.camp.run(*words, "--force", "now it is", "--json").json["hosts"] == ["a", "b"]


@pytest.mark.slow
def test_a_checkpoint_for_which_there_is_no_room_on_one_host(cluster: Cluster) -> None:
    camp = cluster.camp
    a = cluster.add("a")
    b = add_small_disk(cluster, "b", "4g")
    settings = {
        "run.nproc_per_node": "1",
        "run.python": sys.executable,
        "train.checkpoint_every": "20",
        "train.steps": "1000000",
        "train.log_every": "5",
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    run = camp.run("launch", "gpt-tiny", "--on", "a,b", *words, "--json").json["run"]
    checkpoints = f"/root/.encamp/runs/{run}/checkpoints"
    complete = f"ls -d {checkpoints}/*/complete.json 2> /dev/null | wc -l"
    wait_until(lambda: int(b.inside("sh", "-c", complete)) > 0, 60, "a checkpoint is complete")
    b.inside("sh", "-c", SHRINK)

    said(camp, run, 0, "could not be written: b: [Errno 28] No space left on device")
    assert camp.status(run)["state"] == "running", "training goes on"
    kept = [host.inside("sh", "-c", f"cd {checkpoints}; ls -d */complete.json") for host in (a, b)]
    assert kept[0] == kept[1] != "", "both keep the same older ones"

    fill = f"dd if=/dev/zero of={checkpoints}/filler bs=4k 2> /dev/null; true"
    b.inside("sh", "-c", fill)
    grown(log_file(a, run, "rank0"), log_file(a, run, "rank0").stat().st_size)
    b.inside("mount", "-o", "remount,size=4g", "/root/.encamp")
    newest = kept[0].splitlines()[-1]
    newer = f"cd {checkpoints}; ls -d */complete.json | grep -v {newest} | cat"
    wait_until(lambda: a.inside("sh", "-c", newer) == b.inside("sh", "-c", newer) != "", 90, "and later")
    assert camp.run("stop", run, "--json").json["state"] == "stopped"
    assert cluster.runs_nowhere()

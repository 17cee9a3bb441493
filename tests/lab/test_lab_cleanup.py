"""Nothing of a lab outlives it: not after a failure, not after its owner was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from . import cgroups
from .cleanup import labs, remove_orphans
from .lab import Lab
from .machine import CHECKOUT
from .names import FOLDERS, LabName, lab_of
from .options import Cable
from .tools import NAMESPACES, Impossible, run, why_not

pytestmark = pytest.mark.sshd


def traces(lab: LabName) -> list[str]:
    """All that there is of a lab on this machine."""
    commands = command_lines()
    return [
        *(path.name for path in FOLDERS.glob(f"{lab}*")),
        *(path.name for path in NAMESPACES.glob(f"{lab}*")),
        *(str(path) for path in cgroups.groups_of(lab)),
        *(line for line in commands if lab in line),
        *(line for line in run("ip", "-o", "link").splitlines() if f" {lab.interface}@" in line),
    ]


def command_lines() -> list[str]:
    """Of all processes but ours and our parent's."""
    own = {os.getpid(), os.getppid()}
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if int(path.parent.name) not in own:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                lines.append(path.read_bytes().decode(errors="replace"))
    return lines


def test_a_failure_leaves_nothing() -> None:
    if why_not():
        pytest.skip(why_not())
    with pytest.raises(ZeroDivisionError), Lab() as lab:
        lab.add(pids=100, cable=Cable(latency_ms=1), nat="gw").run("sleep 1000 > /dev/null 2>&1 &")
        assert len(traces(lab.name)) > 5
        raise ZeroDivisionError
    assert traces(lab.name) == []


def test_a_host_that_cannot_be_made_leaves_nothing() -> None:
    if why_not():
        pytest.skip(why_not())
    with pytest.raises(Impossible, match=r"Python 9\.9"), Lab() as lab:
        lab.add(python="9.9")
    assert traces(lab.name) == []


def test_what_a_killed_owner_left_is_removed_by_the_next_one_and_only_that(lab: Lab) -> None:
    mine = lab.add()
    command = [sys.executable, "-m", "tests.lab", "up", "1", "--pids", "100", "--latency", "1"]
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        line = owner.stdout.readline()
        name = lab_of(line.partition("/tmp/")[2])
        assert name is not None, line
        assert name not in remove_orphans()
        assert len(traces(name)) > 4
        owner.send_signal(signal.SIGKILL)
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab", "down"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    # Any lab that starts beside this test may have removed it first.
    assert f"{name} is in use" not in done.stdout
    assert f"{lab.name} is in use" in done.stdout
    assert traces(name) == []
    assert name not in labs()
    assert mine.run("hostname").stdout == "h1\n"


def test_an_interrupt_ends_a_lab_made_by_hand(lab: Lab) -> None:
    command = [sys.executable, "-m", "tests.lab", "up", "1", "--noise", "vast", "--shm", "32m"]
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        line = owner.stdout.readline()
        words = line.split()[1:]
        ssh = [
            *words[:1],
            "-F",
            "none",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
        ]
        said = subprocess.run(
            [*ssh, *words[1:], "df", "/dev/shm"], capture_output=True, text=True, check=True
        )
        assert "32768" in said.stdout
        owner.stdin.write("reboot h1\nreboot h7\n")
        owner.stdin.flush()
        answers = iter(owner.stdout.readline, "")
        assert any(answer == "done\n" for answer in answers)
        assert any(answer == "There is no host h7.\n" for answer in answers)
        owner.send_signal(signal.SIGINT)
        assert owner.wait(15) == 0
    name = lab_of(line.partition("/tmp/")[2])
    assert name is not None
    assert traces(name) == []

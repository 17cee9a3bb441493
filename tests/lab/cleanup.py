"""Removing labs by name: one's own at its end, and what others left that were killed."""

from __future__ import annotations

import os
import shutil
import signal
from functools import partial
from pathlib import Path

from waiting import wait_until

from . import cgroups
from .names import FOLDERS, PREFIX, LabName, lab_of, machine_lock
from .tools import NAMESPACES, run


def kill_all_in(namespace: str) -> None:
    """Kill every process of a network namespace, and return when there is none."""
    wait_until(lambda: not _killed(namespace), message=f"the processes in {namespace} end")


def remove(lab: LabName) -> None:
    """Remove all that belongs to a lab: processes, namespaces and what is in them, groups, files."""
    for namespace in _namespaces(lab):
        kill_all_in(namespace)
    if (Path("/sys/class/net") / lab.interface).exists():
        run("ip", "link", "delete", lab.interface)  # else the kernel does so some time after its peer
    for namespace in _namespaces(lab):
        run("ip", "netns", "delete", namespace)
    for group in cgroups.groups_of(lab):
        # A group stays busy until its last process is quite gone.
        wait_until(partial(_removed, group), message=f"{group} is empty")
    shutil.rmtree(lab.folder, ignore_errors=True)


def remove_orphans() -> list[LabName]:
    """Remove the labs whose owners were killed, and return their names; others are left alone."""
    with machine_lock():
        orphans = sorted(lab for lab in labs() if lab.orphaned)
        for lab in orphans:
            remove(lab)
    return orphans


def labs() -> set[LabName]:
    """All of which there is anything on this machine."""
    names = {path.name for path in FOLDERS.glob(f"{PREFIX}*")}
    names |= {path.name for path in NAMESPACES.glob(f"{PREFIX}*")}
    names |= {group.name for group in cgroups.groups_of(PREFIX)}
    return {lab for lab in map(lab_of, names) if lab is not None}


def _namespaces(lab: LabName) -> list[str]:
    return sorted(path.name for path in NAMESPACES.glob(f"{lab}-*"))


def _killed(namespace: str) -> list[int]:
    """Send SIGKILL to the processes that are left, and return them."""
    pids = [int(word) for word in run("ip", "netns", "pids", namespace).split()]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return pids


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True

"""A run on two hosts, from the command to its first step, against torchrun started by hand through ssh.

The hosts were used before: the agent is there, and Python's files are in the page cache.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from lab.lab import Lab
from two_hosts import TwoHosts, seconds, spread

pytestmark = [pytest.mark.bench, pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(900)]

PAIRS = 5
START = 1.2


def test_start_against_torchrun_by_hand(lab: Lab, tmp_path: Path) -> None:
    two_hosts = TwoHosts(lab, tmp_path)
    two_hosts.by_hand()
    two_hosts.launch()
    ours, theirs = [], []
    for pair in range(PAIRS):
        if pair % 2:  # neither is always the first
            ours.append(two_hosts.launch())
            theirs.append(two_hosts.by_hand())
        else:
            theirs.append(two_hosts.by_hand())
            ours.append(two_hosts.launch())
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    print(f"\nto the first step: encamp {seconds(ours)}, by hand {seconds(theirs)}, ratio {spread(ratios)}")
    assert statistics.median(ratios) <= START

"""Lab hosts are machines of their own that reach each other, and nothing of them stays."""

from __future__ import annotations

import pytest

from .lab import Lab

pytestmark = pytest.mark.sshd


def test_two_hosts_with_sshd_reach_each_other(lab: Lab) -> None:
    a, b = lab.up(2)
    for host, peer in ((a, b), (b, a)):
        said = host.run(f"hostname; head -c 4 < /dev/tcp/{peer.address}/22")
        assert said.stdout == f"{host.name}\nSSH-"

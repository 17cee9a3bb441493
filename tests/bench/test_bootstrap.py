"""From nothing to the first telemetry of a host, against OpenSSH running an empty Python there."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ssh.sshd import Sshd
from waiting import eventually

from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.ssh.server import end_processes_of
from tui.fleet.store import Store

pytestmark = [pytest.mark.bench, pytest.mark.sshd, pytest.mark.timeout(300)]

ROUNDS = 9
COLD, WARM = 3.0, 1.5


async def test_cold_and_warm_against_a_bare_ssh(run_sshd: Callable[..., Sshd], client_home: Path) -> None:
    server = run_sshd()
    await first_telemetry(server)  # accepts the host key: that happens once in a host's life
    cold, warm = [], []
    for _ in range(ROUNDS):
        end_processes_of(server.home)
        subprocess.run(["rm", "-rf", server.environment], check=True)
        floor = bare_python(server)
        cold.append(await first_telemetry(server) / floor)
        floor = bare_python(server)
        warm.append(await first_telemetry(server) / floor)
    print(f"\nfirst telemetry / ssh host python3 -c '': cold {summary(cold)}, warm {summary(warm)}")
    assert statistics.median(cold) <= COLD
    assert statistics.median(warm) <= WARM


def bare_python(server: Sshd) -> float:
    """Seconds of `ssh host python3 -c ''`."""
    start = time.perf_counter()
    subprocess.run([*server.command(), "python3 -c ''"], check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - start


async def first_telemetry(server: Sshd) -> float:
    """Seconds from starting a session to the host's first sample in the store."""
    store = Store()
    session = Session(server.host(), store, NoPrompts(accept_new_host_key=True))
    start = time.perf_counter()
    task = asyncio.create_task(session.run())
    try:
        await eventually(lambda: session.view.sample is not None, 30, "the first sample")
        return time.perf_counter() - start
    finally:
        await session.close()
        await asyncio.wait([task])


def summary(ratios: list[float]) -> str:
    """Median, least and most of some ratios."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"

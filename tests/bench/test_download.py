"""Fetching a large file with `encamp get`'s parts, against `ssh cat`, and the age of telemetry."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import pytest
from ssh.sshd import Sshd

from tui.fleet.download import Download
from tui.fleet.host_files import HostFiles
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import Store

pytestmark = [pytest.mark.bench, pytest.mark.sshd, pytest.mark.timeout(300)]

MEGABYTES = 200
ROUNDS = 5
RATIO = 0.7
AGE_SECONDS = 2.0


async def test_a_download_against_ssh_cat(sshd: Sshd, client_home: Path, tmp_path: Path) -> None:
    folder = sshd.home / ".encamp" / "runs" / "run-1"
    (folder / "attempts" / "1").mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"run": "run-1", "name": "run", "profile": "p", "strategy": "ddp", "created": time.time()})
    )
    big = folder / "model.pt"
    with big.open("wb") as file:
        for _ in range(MEGABYTES):
            file.write(os.urandom(1_000_000))
    session = Session(sshd.host(), Store(), NoPrompts(accept_new_host_key=True))
    task = asyncio.ensure_future(session.run())
    ratios, ages = [], []
    try:
        await session.connected(30)
        for number in range(ROUNDS):
            floor = cat(sshd, big, tmp_path / "cat")
            target = tmp_path / f"get-{number}"
            watching = asyncio.ensure_future(oldest(session))
            start = time.perf_counter()
            host = HostFiles(session, "run-1")
            files, _, _ = await host.find("model.pt")
            await Download(host).run(target, files, force=False)
            await host.close()
            ratios.append(floor / (time.perf_counter() - start))
            watching.cancel()
            await asyncio.wait([watching])
            ages.append(watching.result())
            assert target.stat().st_size == MEGABYTES * 1_000_000
            target.unlink()
    finally:
        await session.close()
        await asyncio.wait([task])
    print(
        f"\nssh cat / encamp get of {MEGABYTES} MB: median {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f}-{max(ratios):.2f}); oldest telemetry {max(ages):.2f} s"
    )
    assert statistics.median(ratios) >= RATIO
    assert max(ages) < AGE_SECONDS


def cat(server: Sshd, path: Path, target: Path) -> float:
    """Seconds of `ssh host cat path > target`."""
    start = time.perf_counter()
    with target.open("wb") as file:
        subprocess.run([*server.command(), f"cat {path}"], check=True, stdout=file, stdin=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    target.unlink()
    return seconds


async def oldest(session: Session) -> float:
    """The longest time without a new sample, until it is cancelled."""
    longest, since, seen = 0.0, time.monotonic(), session.view.sample
    try:
        while True:
            if session.view.sample is not seen:
                since, seen = time.monotonic(), session.view.sample
            longest = max(longest, time.monotonic() - since)
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return longest

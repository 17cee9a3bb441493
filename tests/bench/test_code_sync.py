"""Sending a project against `tar c | ssh tar x`: first, unchanged, a little changed; age of telemetry."""

from __future__ import annotations

import asyncio
import os
import random
import shlex
import statistics
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from ssh.sshd import Sshd

from tui.fleet.code_sync import sync
from tui.fleet.project import collect
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import Store

pytestmark = [pytest.mark.bench, pytest.mark.sshd, pytest.mark.timeout(300)]

FILES, MEGABYTES, CHANGED = 2000, 50, 10
ROUNDS = 5
FIRST_RATIO, CHANGED_RATIO = 1.5, 0.3
ROUND_TRIPS = 2

UPLOAD_MEGABYTES = 200
AGE_SECONDS = 2.0


@asynccontextmanager
async def connected(server: Sshd) -> AsyncIterator[Session]:
    """A session with the host."""
    session = Session(server.host(), Store(), NoPrompts(accept_new_host_key=True))
    task = asyncio.ensure_future(session.run())
    try:
        await session.connected(30)
        yield session
    finally:
        await session.close()
        await asyncio.wait([task])


def make_project(folder: Path) -> None:
    """Files of sizes as in a repository, a few of them large, committed to git."""
    weights = [random.lognormvariate(0, 1.5) for _ in range(FILES)]
    scale = MEGABYTES * 1_000_000 / sum(weights)
    for number, weight in enumerate(weights):
        path = folder / f"package{number % 40}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(int(weight * scale)))
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)


def tar(server: Sshd, folder: Path, target: Path) -> float:
    """Seconds of `tar c | ssh host tar x`."""
    script = f"mkdir -p {shlex.quote(str(target))} && tar xf - -C {shlex.quote(str(target))}"
    line = (
        f"tar cf - --exclude .git -C {shlex.quote(str(folder))} . | {shlex.join([*server.command(), script])}"
    )
    start = time.perf_counter()
    subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], check=True)
    return time.perf_counter() - start


async def send(session: Session, folder: Path) -> float:
    """Seconds from the folder to the tree on the host."""
    start = time.perf_counter()
    await sync(session, await asyncio.to_thread(collect, folder))
    return time.perf_counter() - start


async def test_a_project_against_tar_through_ssh(
    sshd: Sshd, client_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, changed, again, trips = [], [], [], []
    async with connected(sshd) as session:
        request, open_bulk = session.request, session.open_bulk
        asked: list[str] = []

        async def counted(method: str, *args: object, **kwargs: object) -> object:
            asked.append(method)
            return await request(method, *args, **kwargs)  # type: ignore[arg-type]

        async def counted_bulk(command: str) -> object:
            asked.append(command)
            return await open_bulk(command)

        monkeypatch.setattr(session, "request", counted)
        monkeypatch.setattr(session, "open_bulk", counted_bulk)
        for number in range(ROUNDS):
            folder = tmp_path / f"project{number}"
            make_project(folder)
            floor = tar(sshd, folder, sshd.home / f"tar{number}")
            seconds = await send(session, folder)
            first.append(seconds / floor)
            asked.clear()
            again.append(await send(session, folder) / seconds)
            trips.append(len(asked))
            for path in sorted(folder.rglob("*.py"))[:: FILES // CHANGED]:
                path.write_bytes(path.read_bytes() + b"\n")
            changed.append(await send(session, folder) / seconds)
            print(f"\ntar {floor:.2f} s, first {seconds:.2f} s, changed {changed[-1] * seconds:.2f} s")
    print(
        f"{FILES} files, {MEGABYTES} MB: first time {statistics.median(first):.2f} of tar | ssh tar "
        f"({min(first):.2f}-{max(first):.2f}); unchanged {max(trips)} round trips, "
        f"{statistics.median(again):.2f} of the first; {CHANGED} changed {statistics.median(changed):.2f} "
        f"({min(changed):.2f}-{max(changed):.2f})"
    )
    assert statistics.median(first) <= FIRST_RATIO
    assert max(trips) <= ROUND_TRIPS
    assert statistics.median(changed) <= CHANGED_RATIO


async def test_telemetry_goes_on_during_an_upload(sshd: Sshd, client_home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    with (folder / "big").open("wb") as file:
        for _ in range(UPLOAD_MEGABYTES):
            file.write(os.urandom(1_000_000))
    async with connected(sshd) as session:
        watching = asyncio.ensure_future(oldest(session))
        pinging = asyncio.ensure_future(slowest(session))
        seconds = await send(session, folder)
        for task in (watching, pinging):
            task.cancel()
        await asyncio.wait([watching, pinging])
    print(
        f"\n{UPLOAD_MEGABYTES} MB in {seconds:.1f} s: oldest telemetry {watching.result():.2f} s, "
        f"slowest answer {pinging.result() * 1000:.0f} ms"
    )
    assert watching.result() < AGE_SECONDS


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


async def slowest(session: Session) -> float:
    """The longest that a question had to wait for its answer, until it is cancelled."""
    longest = 0.0
    try:
        while True:
            start = time.monotonic()
            await session.request("ping", {})
            longest = max(longest, time.monotonic() - start)
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return longest

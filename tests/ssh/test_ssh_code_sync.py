"""A project on its way to hosts over a real sshd: whole, only changes, resumed, repaired, refused."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from ssh.sshd import Sshd
from waiting import eventually

from tui.fleet import code_sync, code_upload, session
from tui.fleet.code_sync import sync, sync_all
from tui.fleet.errors import EncampError, HostError
from tui.fleet.parallel import HostsFailed
from tui.fleet.project import Project, collect
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import Store

pytestmark = pytest.mark.sshd

Open = Callable[..., object]
TIME = 1_000_000_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FIRST_RETRY", 0.1)
    monkeypatch.setattr(session, "LAST_RETRY", 0.3)


@pytest.fixture
async def connect(client_home: Path) -> AsyncIterator[Callable[..., object]]:
    tasks: list[asyncio.Task[None]] = []

    async def start(server: Sshd, **fields: object) -> Session:
        started = Session(server.host(**fields), Store(), NoPrompts(accept_new_host_key=True))
        tasks.append(asyncio.ensure_future(started.run()))
        await started.connected(30)
        return started

    yield start
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def tree(server: Sshd, project: Project) -> Path:
    return server.home / ".encamp" / "code" / project.tree.sha256


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def left_over(server: Sshd) -> list[str]:
    """What lies beside the trees."""
    code = server.home / ".encamp" / "code"
    incoming = [f"incoming/{path.name}" for path in (code / "incoming").rglob("*")]
    return sorted(
        incoming
        + [
            path.name
            for path in code.iterdir()
            if path.name != "incoming" and path.name.partition(".")[2] not in ("", "json", "manifest")
        ]
    )


class Counted:
    """A session of which the requests and commands are counted, and the bytes that went up."""

    def __init__(self, inner: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[str] = []
        self.commands = 0
        self.written = 0
        request, open_bulk = inner.request, inner.open_bulk

        async def counted_request(method: str, *args: object, **kwargs: object) -> object:
            self.requests.append(method)
            return await request(method, *args, **kwargs)  # type: ignore[arg-type]

        async def counted_open(command: str) -> object:
            self.commands += 1
            channel = await open_bulk(command)
            write = channel.write

            async def counted_write(data: bytes) -> None:
                self.written += len(data)
                await write(data)

            monkeypatch.setattr(channel, "write", counted_write)
            return channel

        monkeypatch.setattr(inner, "request", counted_request)
        monkeypatch.setattr(inner, "open_bulk", counted_open)

    def reset(self) -> None:
        self.requests, self.commands, self.written = [], 0, 0


async def test_a_project_comes_whole_and_then_only_what_has_changed(
    sshd: Sshd, connect: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"pkg/deep/m{number}.py": os.urandom(20_000) for number in range(100)}
    files |= {
        "train.py": b"print(1)\n",
        "empty": b"",
        "same/empty": b"",
        "ünï/c ö": b"x",
        "copy.py": b"print(1)\n",
    }
    here = write(tmp_path / "proj", files)
    (here / "train.py").chmod(0o755)
    (here / "latest").symlink_to("pkg/deep")
    (here / "pkg" / "up").symlink_to("../train.py")
    (here / "dangling").symlink_to("nowhere")
    host = await connect(sshd)
    counted = Counted(host, monkeypatch)
    shown: list[tuple[str, int, int]] = []
    project = collect(here)
    await sync(host, project, lambda *args: shown.append(args))

    there = tree(sshd, project)
    assert contents(there) == files
    links = {str(p.relative_to(there)): str(p.readlink()) for p in there.rglob("*") if p.is_symlink()}
    assert links == {"latest": "pkg/deep", "pkg/up": "../train.py", "dangling": "nowhere"}
    status = {name: (there / name).stat() for name in ("train.py", "copy.py", "empty")}
    assert [stat.S_IMODE(status[name].st_mode) for name in status] == [0o555, 0o444, 0o444]
    assert {int(one.st_mtime) for one in status.values()} == {TIME}
    size = 2_000_000 + 9 + 1
    assert shown[0] == ("box", 0, size)
    assert shown[-1] == ("box", size, size)
    assert (counted.requests, counted.commands) == (["tree_has"], 1)
    assert left_over(sshd) == []

    counted.reset()
    await sync(host, collect(here))
    assert (counted.requests, counted.commands) == (["tree_has"], 0)

    counted.reset()
    (here / "pkg" / "deep" / "m3.py").write_bytes(b"changed")
    (here / "pkg" / "deep" / "m4.py").unlink()
    changed = collect(here)
    shown.clear()
    await sync(host, changed, lambda *args: shown.append(args))
    assert tree(sshd, changed) != there
    expected = {**files, "pkg/deep/m3.py": b"changed"}
    del expected["pkg/deep/m4.py"]
    assert contents(tree(sshd, changed)) == expected
    assert contents(there) == files
    assert shown[-1] == ("box", 7, 7)
    assert counted.written < 20_000
    assert left_over(sshd) == []


async def test_what_was_altered_there_is_repaired(sshd: Sshd, connect: Open, tmp_path: Path) -> None:
    files = {f"m{number}.py": os.urandom(5_000) for number in range(20)}
    here = write(tmp_path / "proj", files)
    host = await connect(sshd)
    project = collect(here)
    await sync(host, project)
    there = tree(sshd, project)
    (there / "m1.py").write_bytes(b"x" * 5_000)
    (there / "m2.py").unlink()
    os.utime(there / "m3.py", (1, 1))
    shown: list[tuple[str, int, int]] = []
    await sync(host, project, lambda *args: shown.append(args))
    assert contents(there) == files
    assert shown[-1] == ("box", 10_000, 10_000)
    shown.clear()
    await sync(host, project, lambda *args: shown.append(args))
    assert shown == []
    # Altered without a trace in its time: found when it would get into another tree.
    (there / "m1.py").write_bytes(b"y" * 5_000)
    os.utime(there / "m1.py", (TIME, TIME))
    (here / "new.py").write_bytes(b"new")
    other = collect(here)
    await sync(host, other)
    assert contents(tree(sshd, other)) == {**files, "new.py": b"new"}
    assert left_over(sshd) == []


async def test_it_goes_on_where_the_connection_was_lost(
    sshd: Sshd, connect: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"small{number}": os.urandom(100_000) for number in range(30)} | {
        "zz-big": os.urandom(12_000_000)
    }
    here = write(tmp_path / "proj", files)
    host = await connect(sshd)
    counted = Counted(host, monkeypatch)
    project = collect(here)
    cuts: list[int] = []

    def shown(name: str, done: int, total: int) -> None:
        if done > 5_000_000 * (len(cuts) + 1) and len(cuts) < 2:
            cuts.append(done)
            sshd.cut()

    await sync(host, project, shown)
    assert len(cuts) == 2
    assert contents(tree(sshd, project)) == files
    assert counted.commands == 3
    assert counted.written < 15_000_000 + 2 * 9_000_000
    assert left_over(sshd) == []


async def test_a_host_that_stays_away_keeps_what_has_come(
    sshd: Sshd, connect: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_sync, "RECONNECT_SECONDS", 0.5)
    here = write(tmp_path / "proj", {"big": os.urandom(20_000_000)})
    host = await connect(sshd)
    project = collect(here)
    stopped: list[int] = []

    def shown(name: str, done: int, total: int) -> None:
        if done > 8_000_000 and not stopped:
            stopped.append(done)
            sshd.stop()

    with pytest.raises(HostError) as lost:
        await sync(host, project, shown)
    assert "goes on where it stopped" in lost.value.hint
    assert not tree(sshd, project).exists()
    sshd.start()
    await host.connected(30)
    begun: list[int] = []
    await sync(host, project, lambda name, done, total: begun.append(done))
    assert begun[0] >= 8_000_000
    assert contents(tree(sshd, project)) == contents(here)
    assert left_over(sshd) == []


async def test_what_a_broken_transfer_left_is_not_believed(sshd: Sshd, connect: Open, tmp_path: Path) -> None:
    here = write(tmp_path / "proj", {"a": b"a" * 1000, "b": b"b" * 1000, "c": b"c" * 1000})
    host = await connect(sshd)
    project = collect(here)
    old = sshd.home / ".encamp" / "code" / "incoming" / "0123"
    old.mkdir(parents=True)
    hashes = {entry.path: entry.content for entry in project.entries}
    (old / hashes["a"]).write_bytes(b"x" * 1000)
    (old / hashes["b"]).write_bytes(b"x" * 500)
    (old / hashes["c"]).write_bytes(b"c" * 500)
    await sync(host, project)
    assert contents(tree(sshd, project)) == contents(here)
    assert left_over(sshd) == []


async def test_two_controllers_send_the_same_at_once(sshd: Sshd, connect: Open, tmp_path: Path) -> None:
    here = write(tmp_path / "proj", {f"m{number}": os.urandom(50_000) for number in range(60)})
    project = collect(here)
    one, other = await connect(sshd), await connect(sshd)
    await asyncio.gather(sync(one, project), sync(other, project))
    assert contents(tree(sshd, project)) == contents(here)
    assert left_over(sshd) == []


async def test_all_hosts_at_once_and_who_fails_is_named(
    run_sshd: Callable[..., Sshd], connect: Open, tmp_path: Path
) -> None:
    good = run_sshd(bashrc="echo Welcome; echo to the machine >&2\n", banner="Have fun!\n")
    full = run_sshd(mounts=((".encamp", "size=24m"),))
    here = write(tmp_path / "proj", {"data": os.urandom(30_000_000)})
    project = collect(here)
    sessions = [await connect(good, name="good"), await connect(full, name="full")]
    with pytest.raises(HostsFailed) as failed:
        await sync_all(sessions, project)
    assert (failed.value.host, failed.value.code) == ("full", "no-space")
    assert "47 MB have to be free for it, and 25 MB are" in failed.value.message
    assert contents(tree(good, project)) == contents(here)


async def test_a_file_that_changes_meanwhile(sshd: Sshd, connect: Open, tmp_path: Path) -> None:
    here = write(tmp_path / "proj", {"a": b"a" * 1000, "b": b"b" * 1000})
    host = await connect(sshd)
    project = collect(here)
    (here / "b").write_bytes(b"c" * 1000)
    with pytest.raises(EncampError, match="b has another content") as refused:
        await sync(host, project)
    assert refused.value.hint
    (here / "b").write_bytes(b"c" * 999)
    with pytest.raises(code_upload.FileChanged):
        await sync(host, project)
    await sync(host, collect(here))
    assert contents(tree(sshd, collect(here))) == contents(here)


async def test_a_slow_link_gets_compressed_data(
    sshd: Sshd, connect: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_upload, "SLOW_LINK", float("inf"))
    monkeypatch.setattr(code_upload, "QUICK_SECONDS", 0)  # so that it is known with the first acknowledgement
    files = {"text": b"".join(b"line %d\n" % n for n in range(300_000)), "noise": os.urandom(2_000_000)}
    here = write(tmp_path / "proj", files)
    host = await connect(sshd)
    counted = Counted(host, monkeypatch)
    await sync(host, project := collect(here))
    assert contents(tree(sshd, project)) == files
    assert 2_000_000 < counted.written < 4_000_000


async def test_telemetry_and_requests_go_on(sshd: Sshd, connect: Open, tmp_path: Path) -> None:
    here = write(tmp_path / "proj", {f"m{n}": os.urandom(10_000_000) for n in range(4)})
    host = await connect(sshd)
    before = host.view.sample
    sending = asyncio.ensure_future(sync(host, collect(here)))
    start = time.monotonic()
    await host.request("ping", {})
    assert time.monotonic() - start < 1
    await sending
    await eventually(lambda: host.view.sample is not before, 3)

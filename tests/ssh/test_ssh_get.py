"""Files of a run over a real sshd: whole, resumed, refused, and never anywhere but where they belong."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from ssh.sshd import Sshd
from waiting import eventually

from tui.fleet import download, host_files, session
from tui.fleet.download import Download, part_of
from tui.fleet.errors import EncampError, HostError, RequestRefused, UsageError
from tui.fleet.host_files import HostFiles
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import Store

pytestmark = pytest.mark.sshd

Open = Callable[..., Any]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FIRST_RETRY", 0.1)
    monkeypatch.setattr(session, "LAST_RETRY", 0.3)


def make_run(server: Sshd) -> Path:
    folder = server.home / ".encamp" / "runs" / "run-1"
    (folder / "attempts" / "1").mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"run": "run-1", "name": "run", "profile": "p", "strategy": "ddp", "created": time.time()})
    )
    return folder


@pytest.fixture
def run(sshd: Sshd) -> Path:
    """The folder of a run on the host."""
    return make_run(sshd)


@pytest.fixture
async def connect(client_home: Path) -> AsyncIterator[Open]:
    tasks: list[asyncio.Task[None]] = []
    opened: list[HostFiles] = []

    async def start(server: Sshd) -> HostFiles:
        started = Session(server.host(), Store(), NoPrompts(accept_new_host_key=True))
        tasks.append(asyncio.ensure_future(started.run()))
        await started.connected(30)
        opened.append(HostFiles(started, "run-1"))
        return opened[-1]

    yield start
    for host in opened:
        await host.close()
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def fetch(host: HostFiles, path: str, root: Path, *, force: bool = False) -> Download:
    files, _, _ = await host.find(path)
    fetching = Download(host)
    await fetching.run(root, files, force=force)
    return fetching


def left_over(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.endswith(".part")]


async def test_a_folder_comes_whole_and_what_cannot_come_is_named(
    sshd: Sshd, run: Path, connect: Open, tmp_path: Path
) -> None:
    contents = {
        "step-100/model.pt": os.urandom(2_500_000),
        "step-100/ünï cöde": b"x",
        "step-100/empty": b"",
        "step-100/deep/er/config.json": b"{}",
    }
    for name, data in contents.items():
        path = run / "checkpoints" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (run / "checkpoints" / "step-100" / "passwd").symlink_to("/etc/passwd")
    (run / "checkpoints" / "step-100" / "\x1b[2J").write_bytes(b"ugly")
    (run / "checkpoints" / "step-100" / "\u202egnp").write_bytes(b"ugly")
    Path(os.fsdecode(os.fsencode(run / "checkpoints" / "step-100") + b"/\xff")).write_bytes(b"ugly")
    os.mkfifo(run / "checkpoints" / "step-100" / "pipe")
    host = await connect(sshd)
    files, skipped, is_folder = await host.find("checkpoints")
    assert is_folder
    root = tmp_path / "here" / "checkpoints"
    fetched = await Download(host).run(root, files, force=False)
    assert {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()} == contents
    assert len(skipped) == 5
    assert sorted({left.reason for left in skipped}) == sorted(
        {host_files.KINDS["link"], host_files.KINDS["other"], "its name has characters that cannot be shown"}
    )
    assert all(item.sha256 == hashlib.sha256(item.target.read_bytes()).hexdigest() for item in fetched)
    assert left_over(tmp_path) == []


async def test_equal_files_are_kept_and_others_are_not_overwritten(
    sshd: Sshd, run: Path, connect: Open, tmp_path: Path
) -> None:
    (run / "a").write_bytes(b"one")
    (run / "b").write_bytes(b"two")
    host = await connect(sshd)
    root = tmp_path / "here"
    await fetch(host, "a", root / "a")
    (root / "b").write_bytes(b"my own")
    with pytest.raises(UsageError, match="exists here already") as refused:
        await fetch(host, "b", root / "b")
    assert "--force" in refused.value.hint
    assert (root / "b").read_bytes() == b"my own"
    again = await fetch(host, "a", root / "a")
    assert (again.progress.done, again.progress.received) == (3, 0)
    (root / "b").write_bytes(b"otw")
    with pytest.raises(UsageError):
        await fetch(host, "b", root / "b")
    await fetch(host, "b", root / "b", force=True)
    assert (root / "b").read_bytes() == b"two"


async def test_links_here_lead_nowhere(sshd: Sshd, run: Path, connect: Open, tmp_path: Path) -> None:
    (run / "c").mkdir()
    (run / "c" / "file").write_bytes(b"x")
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "here"
    root.mkdir()
    (root / "c").symlink_to(outside)
    host = await connect(sshd)
    for force in (False, True):
        with pytest.raises(UsageError, match="is a link here"):
            await fetch(host, ".", root, force=force)
    assert list(outside.iterdir()) == []
    part = part_of(tmp_path / "file")
    part.symlink_to(outside / "target")
    with pytest.raises(EncampError):
        await fetch(host, "c/file", tmp_path / "file")
    assert list(outside.iterdir()) == []


async def test_it_goes_on_where_it_stopped_if_that_is_the_same(
    sshd: Sshd, run: Path, connect: Open, tmp_path: Path
) -> None:
    data = os.urandom(3_000_000)
    (run / "model.pt").write_bytes(data)
    host = await connect(sshd)
    target = tmp_path / "model.pt"
    part_of(target).write_bytes(data[:2_000_000])
    resumed = await fetch(host, "model.pt", target)
    assert resumed.progress.received == 1_000_000
    assert target.read_bytes() == data
    target.unlink()
    part_of(target).write_bytes(data[:1_000_000] + b"other" + data[1_000_005:2_000_000])
    restarted = await fetch(host, "model.pt", target)
    assert restarted.progress.received == 3_000_000
    assert target.read_bytes() == data
    assert left_over(tmp_path) == []


async def test_a_host_that_is_lost_and_comes_back(
    sshd: Sshd, run: Path, connect: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.fleet.host_files.PIECE", 64 * 1024)
    data = os.urandom(20_000_000)
    (run / "model.pt").write_bytes(data)
    host = await connect(sshd)
    target = tmp_path / "model.pt"
    files, _, _ = await host.find("model.pt")
    cuts = []

    def shown(progress: download.Progress) -> None:
        if progress.received > 5_000_000 and not cuts:
            cuts.append(sshd.cut())

    fetching = Download(host, shown)
    await fetching.run(target, files, force=False)
    assert cuts
    assert target.read_bytes() == data
    assert fetching.progress.done == fetching.progress.total
    assert fetching.progress.received < 25_000_000, "what had come was kept"


async def test_a_host_that_stays_away(
    sshd: Sshd, run: Path, connect: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.fleet.host_files.PIECE", 64 * 1024)
    monkeypatch.setattr(download, "RETURN_SECONDS", 0.5)
    data = os.urandom(20_000_000)
    (run / "model.pt").write_bytes(data)
    host = await connect(sshd)
    target = tmp_path / "model.pt"
    files, _, _ = await host.find("model.pt")
    stopped = []

    def shown(progress: download.Progress) -> None:
        if progress.received > 5_000_000 and not stopped:
            stopped.append(True)
            sshd.stop()

    with pytest.raises(HostError) as lost:
        await Download(host, shown).run(target, files, force=False)
    assert "goes on where it stopped" in lost.value.hint
    assert not target.exists()
    assert 5_000_000 <= part_of(target).stat().st_size < 20_000_000
    sshd.start()
    await host.session.connected(30)
    assert (await fetch(host, "model.pt", target)).progress.received < 15_100_000
    assert target.read_bytes() == data


async def test_a_host_that_runs_one_command_at_a_time(
    run_sshd: Callable[..., Sshd], connect: Open, tmp_path: Path
) -> None:
    server = run_sshd(config="MaxSessions 1")
    data = os.urandom(1_000_000)
    (make_run(server) / "model.pt").write_bytes(data)
    await fetch(await connect(server), "model.pt", tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == data


async def test_a_noisy_login_shell(run_sshd: Callable[..., Sshd], connect: Open, tmp_path: Path) -> None:
    server = run_sshd(bashrc="echo Welcome; echo to the machine >&2\n", banner="Have fun!\n")
    data = os.urandom(1_000_000)
    (make_run(server) / "model.pt").write_bytes(data)
    await fetch(await connect(server), "model.pt", tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == data


async def test_a_full_disk_here(
    sshd: Sshd, run: Path, connect: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(4_000_000)
    (run / "model.pt").write_bytes(data)
    host = await connect(sshd)
    write = os.pwrite

    def full(descriptor: int, piece: Any, offset: int) -> int:
        if offset >= 2_000_000:
            raise OSError(28, "No space left on device")
        return write(descriptor, piece, offset)

    target = tmp_path / "model.pt"
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(EncampError, match="No space is left here") as refused:
            await fetch(host, "model.pt", target)
    assert "goes on" in refused.value.hint
    kept = part_of(target).stat().st_size
    assert kept >= 2_000_000
    assert (await fetch(host, "model.pt", target)).progress.received == len(data) - kept
    assert target.read_bytes() == data


async def test_a_file_that_is_never_the_same(sshd: Sshd, run: Path, connect: Open, tmp_path: Path) -> None:
    (run / "model.pt").write_bytes(b"x" * 100_000)
    host = await connect(sshd)
    files, _, _ = await host.find("model.pt")
    (run / "model.pt").write_bytes(b"x" * 50_000)
    with pytest.raises(EncampError, match="is being changed"):
        await Download(host).run(tmp_path / "model.pt", files, force=False)
    assert list(tmp_path.glob("*model.pt*")) == []


async def test_a_log_that_grows_is_fetched_as_it_was(
    sshd: Sshd, run: Path, connect: Open, tmp_path: Path
) -> None:
    log = run / "attempts" / "1" / "rank0.log"
    log.write_bytes(b"line\n" * 10_000)
    host = await connect(sshd)
    files, _, _ = await host.find("attempts/1/rank0.log")
    log.write_bytes(b"line\n" * 20_000)
    await Download(host).run(tmp_path / "rank0.log", files, force=False)
    assert (tmp_path / "rank0.log").read_bytes() == b"line\n" * 10_000


async def test_what_is_not_there(sshd: Sshd, run: Path, connect: Open) -> None:
    host = await connect(sshd)
    with pytest.raises(RequestRefused) as refused:
        await host.find("checkpoints")
    assert refused.value.code == "no-file"
    with pytest.raises(RequestRefused) as refused:
        await HostFiles(host.session, "run-2").find(".")
    assert refused.value.code == "no-run"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\0", "\n", "\x1b[2J", "a\x7f", "\u202e", "\udcff", "x" * 256]
)
def test_names_that_nothing_here_gets(name: str) -> None:
    assert host_files.unfit(name)


@pytest.mark.parametrize("name", ["model.pt", ".hidden", "a b", "ünï", "…", "x" * 255, "-rf", "a\\b"])
def test_names_that_are_fine(name: str) -> None:
    assert host_files.unfit(name) is None


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../b", "a\x1b"])
def test_paths_that_are_not_asked_for(path: str) -> None:
    with pytest.raises(UsageError):
        host_files.clean_path(path)


async def test_a_host_that_lies(tmp_path: Path) -> None:
    answers: list[Any] = [
        {"folder": True, "entries": [{"name": "../../x", "kind": "file", "size": 1}], "next": None},
        {"folder": True, "entries": [{"name": "x", "kind": "file", "size": -1}], "next": None},
        {"folder": True, "entries": [{"name": "x", "kind": "file", "size": 1}], "next": 0},
        {"folder": False, "entries": [], "next": None},
        {"folder": "yes", "entries": [], "next": None},
        {},
    ]

    class Liar:
        name = "liar"

        async def request(self, method: str, params: object, timeout: float) -> Any:
            return answers.pop(0)

    host = HostFiles(Liar(), "run-1")  # type: ignore[arg-type]
    files, skipped, _ = await host.find(".")
    assert (files, [left.reason for left in skipped]) == ([], ["its name leads elsewhere"])
    while answers:
        with pytest.raises(HostError, match="makes no sense"):
            await host.find(".")


async def test_folders_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_files, "MAX_FILES", 300)

    class Endless:
        name = "endless"

        async def request(self, method: str, params: object, timeout: float) -> Any:
            return {
                "folder": True,
                "entries": [{"name": f"d{number}", "kind": "folder", "size": 0} for number in range(10)],
                "next": None,
            }

    with pytest.raises(EncampError, match="over 300 files"):
        await HostFiles(Endless(), "run-1").find(".")  # type: ignore[arg-type]


async def test_a_piece_takes_a_moment_and_telemetry_goes_on(
    sshd: Sshd, run: Path, connect: Open, tmp_path: Path
) -> None:
    (run / "model.pt").write_bytes(os.urandom(30_000_000))
    host = await connect(sshd)
    before = host.session.view.sample
    fetching = asyncio.ensure_future(fetch(host, "model.pt", tmp_path / "model.pt"))
    start = time.monotonic()
    await host.session.request("ping", {})
    assert time.monotonic() - start < 1
    await fetching
    await eventually(lambda: host.session.view.sample is not before, 3)

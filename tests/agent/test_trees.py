"""Projects on the host: what comes in, what is refused, what stays when something goes wrong."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import struct
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agent_client import AgentHost, Refused, agent_bundle

from agent import receive, trees
from agent.errors import RunError

Rows = list[list[Any]]


class Sent(NamedTuple):
    """A project as a sender has it."""

    sha256: str
    head: bytes
    rows: Rows
    files: dict[str, bytes]


def project(
    files: dict[str, bytes], links: dict[str, str] | None = None, programs: tuple[str, ...] = ()
) -> Sent:
    rows: Rows = [
        [path, "program" if path in programs else "file", len(data), hashlib.sha256(data).hexdigest()]
        for path, data in files.items()
    ]
    rows += [[path, "link", 0, target] for path, target in (links or {}).items()]
    return sent(sorted(rows), files)


def sent(rows: Any, files: dict[str, bytes]) -> Sent:
    manifest = json.dumps(rows, separators=(",", ":")).encode()
    sha256 = hashlib.sha256(manifest).hexdigest()
    packed = zlib.compress(manifest)
    head = json.dumps({"sha256": sha256, "name": "proj", "size": len(packed)}).encode() + b"\n" + packed
    return Sent(sha256, head, rows, files)


def frame(data: bytes, packed: bool = False) -> bytes:
    data = zlib.compress(data) if packed else data
    return struct.pack(">?I", packed, len(data)) + data


class Host:
    """The folder of all trees on a host."""

    def __init__(self, home: Path) -> None:
        self.root = home / "code"

    def take(self, what: Sent, stream: bytes) -> bytes:
        """Have it come in as `stream`; returns what the host said."""
        out = io.BytesIO()
        receive.Receiver(str(self.root), io.BytesIO(what.head + stream), out).run()
        return out.getvalue()

    def tree(self, what: Sent) -> dict[str, bytes]:
        folder = self.root / what.sha256
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and not path.is_symlink()
        }

    def left(self) -> list[str]:
        """Names of what is neither a tree nor the word about one."""
        found = [str(path.relative_to(self.root)) for path in (self.root / "incoming").rglob("*")]
        return found + [
            path.name
            for path in self.root.iterdir()
            if path.name != "incoming" and path.suffix not in ("", ".json", ".manifest")
        ]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_project_comes_in_under_every_python(tmp_path: Path, python: str) -> None:
    pyz = tmp_path / "agent.pyz"
    pyz.write_bytes(agent_bundle().data)
    what = project({"a/b.py": b"x" * 300_000, "run": b"#!/bin/sh\n", "empty": b""}, {"l": "a"}, ("run",))
    with subprocess.Popen(
        [python, "-I", "-S", "-W", "error", str(pyz), "receive-code", "nonce", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"nonce\n"
        process.stdin.write(what.head)
        process.stdin.flush()
        word, size = process.stdout.readline().split()
        need = json.loads(process.stdout.read(int(size)))
        assert (word, [offset for _, offset in need]) == (b"need", [0, 0, 0])
        content = b"".join(what.files[what.rows[number][0]] for number, _ in need)
        process.stdin.write(frame(content[:100_000], packed=True) + frame(content[100_000:]))
        process.stdin.flush()
        assert process.stdout.read() == b".+"
    assert process.returncode == 0
    there = Host(tmp_path)
    assert there.tree(what) == what.files
    assert there.left() == []
    folder = there.root / what.sha256
    assert (folder / "l").readlink() == Path("a")
    assert [(folder / name).stat().st_mode & 0o777 for name in ("run", "empty")] == [0o555, 0o444]
    assert trees.present(str(there.root), what.sha256)


SHA = "0" * 64


@pytest.mark.parametrize(
    "rows",
    [
        [],
        {},
        [["a"]],
        [["a", "file", 0, SHA, 1]],
        [["a", "device", 0, SHA]],
        [["a", "file", -1, SHA]],
        [["a", "file", True, SHA]],
        [["a", "file", 1.0, SHA]],
        [["a", "file", 0, "0" * 63]],
        [["a", "file", 0, None]],
        [[1, "file", 0, SHA]],
        [["/a", "file", 0, SHA]],
        [["../a", "file", 0, SHA]],
        [["a/../../b", "file", 0, SHA]],
        [["a//b", "file", 0, SHA]],
        [["a/", "file", 0, SHA]],
        [[".", "file", 0, SHA]],
        [["a\\b", "file", 0, SHA]],
        [["a\n", "file", 0, SHA]],
        [["a\u009b", "file", 0, SHA]],
        [["x" * 256, "file", 0, SHA]],
        [["a", "file", 0, SHA], ["a", "file", 0, SHA]],
        [["a", "file", 0, SHA], ["a/b", "file", 0, SHA]],
        [["a", "link", 0, "b"], ["a/b", "file", 0, SHA]],
        [["a", "link", 0, "b"], ["a/b/c", "file", 0, SHA]],
        [["a", "link", 0, ""]],
        [["a", "link", 0, 3]],
        [["a", "link", 0, "/etc"]],
        [["a", "link", 0, "../etc"]],
        [["a/b", "link", 0, "../../etc"]],
        [["a", "link", 0, "b/../../c"]],
        [["a", "link", 0, "b\0c"]],
    ],
)
def test_what_would_lead_elsewhere_is_refused(rows: Any) -> None:
    with pytest.raises(RunError) as refused:
        trees.parse(json.dumps(rows).encode())
    assert refused.value.code == "bad-manifest"


def test_manifests_that_are_none() -> None:
    for data in (b"", b"[", b"[[", b"3", b"\xff", b"[" * 10_000):
        with pytest.raises(RunError):
            trees.parse(data)


def test_links_that_stay_inside() -> None:
    for path, target in (("a/b", ".."), ("a/b", "../c"), ("a", "b/c"), ("a", "."), ("a/b/c", "../../d")):
        assert trees.parse(json.dumps([[path, "link", 0, target]]).encode())


def test_another_hash_than_announced(host: Host) -> None:
    what = project({"a": b"1"})
    with pytest.raises(RunError, match="another hash"):
        host.take(what._replace(head=what.head.replace(what.sha256.encode(), SHA.encode())), b"")
    with pytest.raises(RunError, match="a has another content") as refused:
        host.take(what, frame(b"2"))
    assert refused.value.code == "changed"
    assert host.left() == []


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack(">?I", False, 1024 * 1024 + 1) + b"x" * (1024 * 1024 + 1),
        struct.pack(">?I", True, 3) + b"abc",
    ],
)
def test_frames_that_make_no_sense(host: Host, stream: bytes) -> None:
    with pytest.raises(RunError) as refused:
        host.take(project({"a": b"1" * 2_000_000}), stream)
    assert refused.value.code == "bad-frame"


def test_a_frame_that_would_grow_without_end(host: Host) -> None:
    with pytest.raises(RunError) as refused:
        host.take(project({"a": b"\0" * 50_000_000}), frame(b"\0" * 50_000_000, packed=True))
    assert refused.value.code == "bad-frame"


def test_what_came_before_the_sender_went_is_used(host: Host) -> None:
    what = project({"a": b"a" * 1000, "b": b"b" * 1000, "c": b"c" * 1000})
    with pytest.raises(EOFError):
        host.take(what, frame(b"a" * 1000 + b"b" * 500))
    assert len(host.left()) == 3
    said = host.take(what, frame(b"b" * 500 + b"c" * 1000))
    assert b"[[1, 500], [2, 0]]" in said
    assert host.tree(what) == what.files
    assert host.left() == []


def test_what_is_still_coming_is_left_to_its_transfer(host: Host) -> None:
    what = project({"a": b"a" * 1000})
    with pytest.raises(EOFError):
        host.take(what, frame(b"a" * 500))
    folder = next((host.root / "incoming").iterdir())
    lock = receive._lock(str(folder))
    assert lock is not None
    assert b"[[0, 0]]" in host.take(what, frame(b"a" * 1000))
    assert len(host.left()) == 2
    os.close(lock)


def test_leftovers_of_a_day_ago_are_forgotten(host: Host) -> None:
    what = project({"a": b"a" * 1000})
    with pytest.raises(EOFError):
        host.take(what, frame(b"a" * 500))
    for path in (host.root / "incoming").rglob("*"):
        os.utime(path, (time.time() - 90_000,) * 2)
    assert b"[[0, 0]]" in host.take(what, frame(b"a" * 1000))
    assert host.left() == []


def test_no_space_is_found_before_anything_comes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    what = project({"a": b"a" * 1000})
    size = os.statvfs(host.root.parent)
    free = receive.SPARE_BYTES // size.f_frsize

    class Disk:
        f_bavail, f_frsize = free, size.f_frsize

    monkeypatch.setattr(os, "statvfs", lambda path: Disk)
    with pytest.raises(RunError) as refused:
        host.take(what, frame(b"a" * 1000))
    assert refused.value.code == "no-space"
    assert "17 MB have to be free for it, and 16 MB are" in refused.value.message
    assert not (host.root / what.sha256).exists()
    assert host.left() == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_in_the_middle_is_left_as_it_was(
    host: Host, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = project({"a": b"a" * 1000})
    host.take(before, frame(b"a" * 1000))
    what = project({"a": b"a" * 1000, "b": b"b" * 1000, "c": b"c" * 1000})
    written: list[int] = []

    write = trees.write

    def full(fd: int, data: Any) -> None:
        written.append(len(data))
        if len(written) == 2:
            raise OSError(number, "no space")
        write(fd, data)

    monkeypatch.setattr(trees, "write", full)
    with pytest.raises(RunError) as refused:
        host.take(what, frame(b"b" * 1000) + frame(b"c" * 1000))
    assert refused.value.code == "no-space"
    monkeypatch.undo()
    assert host.left() == []
    assert sorted(path.name for path in host.root.iterdir()) == sorted(
        ["incoming", before.sha256, f"{before.sha256}.json", f"{before.sha256}.manifest"]
    )
    assert host.tree(before) == before.files
    host.take(what, frame(b"b" * 1000 + b"c" * 1000))
    assert host.tree(what) == what.files


def test_a_file_system_without_links_gets_copies(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    one = project({"a": b"a" * 1000, "b": b"a" * 1000})

    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "link", refuse)
    host.take(one, frame(b"a" * 1000))
    other = project({**one.files, "c": b"c"})
    host.take(other, frame(b"c"))
    assert (host.tree(one), host.tree(other)) == (one.files, other.files)
    assert (host.root / one.sha256 / "a").stat().st_nlink == 1
    assert trees.present(str(host.root), other.sha256)


def test_one_content_as_a_file_and_as_a_program(host: Host) -> None:
    one = project({"a": b"#!", "b": b"#!"}, programs=("b",))
    host.take(one, frame(b"#!"))
    other = project({"a": b"#!", "b": b"#!"}, programs=("a",))
    host.take(other, b"")
    modes = [
        (host.root / what.sha256 / name).stat().st_mode & 0o111 for what in (one, other) for name in "ab"
    ]
    assert modes == [0, 0o111, 0o111, 0]
    assert all(trees.present(str(host.root), what.sha256) for what in (one, other))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.write_bytes(b"other")),
        lambda path: path.write_bytes(b"longer than before"),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("b")),
    ],
)
def test_a_tree_that_was_altered_is_made_anew(host: Host, spoil: Callable[[Path], Any]) -> None:
    what = project({"a": b"first", "b": b"second"})
    host.take(what, frame(b"firstsecond"))
    assert trees.present(str(host.root), what.sha256)
    spoil(host.root / what.sha256 / "a")
    assert not trees.present(str(host.root), what.sha256)
    host.take(what, frame(b"first"))
    assert host.tree(what) == what.files
    assert trees.present(str(host.root), what.sha256)
    assert host.left() == []


def test_no_tree_is_there_without_its_word(host: Host) -> None:
    what = project({"a": b"first"})
    assert not trees.present(str(host.root), what.sha256)
    host.take(what, frame(b"first"))
    (host.root / f"{what.sha256}.manifest").write_bytes(b"[]")
    assert not trees.present(str(host.root), what.sha256)
    for bad in ("", "..", "x" * 64, "../" + "0" * 61):
        with pytest.raises(RunError):
            trees.present(str(host.root), bad)


def test_old_trees_go_but_not_those_of_other_projects_or_just_used(host: Host) -> None:
    all_of_them = [project({"a": b"%d" % number}) for number in range(7)]
    for age, what in enumerate(reversed(all_of_them)):
        host.take(what, frame(what.files["a"]))
        word = host.root / f"{what.sha256}.json"
        os.utime(word, (time.time() - 1000 * age,) * 2)
    other = host.root / f"{all_of_them[0].sha256}.json"
    other.write_text('{"name": "other"}')
    os.utime(other, (time.time() - 9000,) * 2)
    leftover = host.root / f"{SHA}.0123.building"
    leftover.mkdir()
    (leftover / "l").symlink_to("/etc")
    os.utime(leftover, (1, 1))
    trees.sweep(str(host.root))
    there = [(host.root / what.sha256).is_dir() for what in reversed(all_of_them)]
    assert there == [True, True, True, True, False, False, True]  # the fourth was used within the hour
    assert len(list(host.root.glob("*.manifest"))) == 5
    assert host.left() == []


def test_the_daemon_says_whether_a_tree_is_there(one_host: AgentHost) -> None:
    what = project({"a": b"first"})
    connection = one_host.connect()
    assert connection.request("tree_has", sha256=what.sha256) == {"present": False}
    Host(Path(one_host.home)).take(what, frame(b"first"))
    assert connection.request("tree_has", sha256=what.sha256) == {"present": True}
    with pytest.raises(Refused) as refused:
        connection.request("tree_has", sha256="../..")
    assert refused.value.code == "bad-hash"

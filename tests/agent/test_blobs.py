"""Archives by content: pieces that resume, hashes that must fit, zip files that want out of their folder."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import random
import stat
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import blobs

GOOD = {"trainer/__init__.py": b"", "trainer/__main__.py": b"print('hello')\n" * 3000, "README": b"\0\xff"}


@pytest.fixture
def store(tmp_path: Path) -> blobs.BlobStore:
    return blobs.BlobStore(str(tmp_path / "code"))


def test_an_archive_in_pieces(store: blobs.BlobStore) -> None:
    data, sha256 = archive(GOOD)
    assert not store.present(sha256)
    offset = 0
    while offset < len(data):
        offset, present = store.put(sha256, len(data), offset, data[offset : offset + 50])
        assert present == (offset == len(data))
    assert store.present(sha256)
    assert unpacked(store, sha256) == GOOD
    assert listing(store.root) == [sha256]
    assert store.put(sha256, len(data), 0, data[:50]) == (len(data), True)


def test_an_interrupted_upload_goes_on_where_it_was(store: blobs.BlobStore) -> None:
    data, sha256 = archive(GOOD)
    assert store.put(sha256, len(data), 0, data[:60]) == (60, False)
    again = blobs.BlobStore(store.root)
    assert again.put(sha256, len(data), 0, data[:100]) == (60, False), "bytes at another offset are not taken"
    assert again.put(sha256, len(data), 200, data[200:]) == (60, False)
    assert again.put(sha256, len(data), 60, data[60:] + b"x") == (60, False), "nor are more than announced"
    assert again.put(sha256, len(data), 60, data[60:]) == (len(data), True)
    assert unpacked(store, sha256) == GOOD


def test_another_content_than_announced(store: blobs.BlobStore) -> None:
    data, _ = archive(GOOD)
    sha256 = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(blobs.BlobError, match="another SHA-256") as refusal:
        store.put(sha256, len(data), 0, data)
    assert refusal.value.code == "bad-hash"
    assert listing(store.root) == [], "what did not fit is not kept"
    assert store.put(sha256, len(data), 0, data[:5]) == (5, False)


def test_a_part_longer_than_the_announced_size_starts_anew(store: blobs.BlobStore) -> None:
    data, sha256 = archive(GOOD)
    store.put(sha256, len(data) + 999, 0, data + b"?" * 900)
    assert store.put(sha256, len(data), 0, data) == (len(data), True)


@pytest.mark.parametrize("sha256", ["", "../../etc", "A" * 64, "g" * 64, "a" * 63, "a" * 64 + "\n"])
def test_what_is_not_a_hash_names_no_folder(store: blobs.BlobStore, sha256: str) -> None:
    for ask in (lambda: store.present(sha256), lambda: store.put(sha256, 1, 0, b"x")):
        with pytest.raises(blobs.BlobError) as refusal:
            ask()
        assert refusal.value.code == "bad-hash"


@pytest.mark.parametrize("size", [0, -1, blobs.MAX_ARCHIVE + 1])
def test_sizes_that_cannot_be(store: blobs.BlobStore, size: int) -> None:
    with pytest.raises(blobs.BlobError) as refusal:
        store.put("a" * 64, size, 0, b"")
    assert refusal.value.code == "too-large"


def test_a_full_disk_is_said_and_can_be_continued(
    store: blobs.BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, sha256 = archive(GOOD)
    store.put(sha256, len(data), 0, data[:60])
    real = os.pwrite

    def half_then_full(fd: int, piece: bytes, offset: int) -> int:
        if offset > 60:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, piece[:10], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half_then_full)
        with pytest.raises(blobs.BlobError, match="no space left") as refusal:
            store.put(sha256, len(data), 60, data[60:])
    assert refusal.value.code == "no-space"
    assert store.put(sha256, len(data), 0, b"") == (60, False), "half a piece does not count"
    assert store.put(sha256, len(data), 60, data[60:]) == (len(data), True)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/cron.d/x",
        "../x",
        "a/../../x",
        "a//b",
        "./a",
        "a/.",
        "..",
        "a\\b",
        "C:\\x",
        "a\nb",
        "a\x1b[31m",
        "a\x7f",
        "a\x9bb",
        "n" * 256,
        "d/" * 600 + "x",
        "",
    ],
)
def test_names_that_leave_the_folder_or_the_screen(store: blobs.BlobStore, name: str) -> None:
    refuse(store, lambda file: add(file, name, b"x"))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_neither_links_nor_devices(store: blobs.BlobStore, kind: int) -> None:
    refuse(store, lambda file: add(file, "x", b"/etc/passwd", kind | 0o777))


def test_two_files_of_one_name(store: blobs.BlobStore) -> None:
    def make(file: zipfile.ZipFile) -> None:
        add(file, "x", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            add(file, "x", b"2")

    refuse(store, make)


def test_a_file_used_as_a_folder(store: blobs.BlobStore) -> None:
    refuse(store, lambda file: (add(file, "x", b"1"), add(file, "x/y", b"2")))


def test_a_bomb_is_stopped_by_what_comes_out(store: blobs.BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "MAX_UNPACKED", 1_000_000)
    refuse(store, lambda file: add(file, "zeros", b"\0" * 2_000_000))


def test_too_many_files(store: blobs.BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "MAX_FILES", 3)
    refuse(store, lambda file: [add(file, str(number), b"") for number in range(4)])


def test_unusual_compression(store: blobs.BlobStore) -> None:
    refuse(store, lambda file: add(file, "x", b"x", method=zipfile.ZIP_LZMA))


def test_bytes_that_are_no_archive_or_a_broken_one(store: blobs.BlobStore) -> None:
    data, _ = archive(GOOD)
    middle = len(data) // 2
    for broken in (b"not a zip", data[:middle], data[:100] + bytes(50) + data[150:]):
        with pytest.raises(blobs.BlobError) as refusal:
            store.put(hashlib.sha256(broken).hexdigest(), len(broken), 0, broken)
        assert refusal.value.code == "bad-archive"


def test_an_archive_with_bytes_changed_anywhere(tmp_path: Path) -> None:
    data, _ = archive({"a/b.py": bytes(range(256)), "ü": b"hello"})
    dice = random.Random(7)
    refused = 0
    for number in range(400):
        broken = bytearray(data)
        for _ in range(dice.choice([1, 1, 3])):
            broken[dice.randrange(len(data))] = dice.randrange(256)
        folder = tmp_path / str(number)
        folder.mkdir()
        file = tmp_path / "archive.zip"
        file.write_bytes(broken)
        try:
            blobs.unpack(str(file), str(folder))
        except blobs.BlobError:
            refused += 1
    assert refused > 200
    assert {path.name for path in tmp_path.iterdir()} == {"archive.zip", *map(str, range(400))}


def test_only_the_executable_bit_is_kept(store: blobs.BlobStore) -> None:
    def make(file: zipfile.ZipFile) -> None:
        add(file, "run.sh", b"#!/bin/sh\n", stat.S_IFREG | 0o4777)
        add(file, "data", b"", stat.S_IFREG | 0o666)
        add(file, "folder/", b"", stat.S_IFDIR | 0o777)

    data, sha256 = zipped(make)
    store.put(sha256, len(data), 0, data)
    root = Path(store.path(sha256))
    assert (root / "run.sh").stat().st_mode & 0o7777 in (0o755, 0o700, 0o750)
    assert (root / "data").stat().st_mode & 0o133 == 0
    assert (root / "folder").is_dir()


def test_left_overs_are_swept_and_fresh_uploads_kept(store: blobs.BlobStore) -> None:
    data, sha256 = archive(GOOD)
    store.put(sha256, len(data), 0, data[:9])
    old = Path(store.root, "b" * 64 + ".part")
    old.write_bytes(b"x")
    os.utime(old, (time.time() - 2 * blobs.PART_SECONDS,) * 2)
    half = Path(store.root, "c" * 64 + ".unpacking", "trainer")
    half.mkdir(parents=True)
    (half / "x.py").write_bytes(b"")
    store.sweep()
    assert listing(store.root) == [sha256 + ".part"]
    blobs.BlobStore(store.root + "-none").sweep()


def listing(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def archive(content: dict[str, bytes]) -> tuple[bytes, str]:
    return zipped(lambda file: [add(file, name, data) for name, data in content.items()])


def zipped(fill: Callable[[zipfile.ZipFile], object]) -> tuple[bytes, str]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        fill(file)
    data = buffer.getvalue()
    return data, hashlib.sha256(data).hexdigest()


def add(
    file: zipfile.ZipFile,
    name: str,
    data: bytes,
    mode: int = stat.S_IFREG | 0o644,
    method: int = zipfile.ZIP_DEFLATED,
) -> None:
    info = zipfile.ZipInfo()
    info.filename = name  # the constructor would clean it
    info.external_attr = mode << 16
    file.writestr(info, data, method)


def refuse(store: blobs.BlobStore, fill: Callable[[zipfile.ZipFile], object]) -> None:
    """The archive is refused as such, and nothing of it stays, inside or outside."""
    data, sha256 = zipped(fill)
    with pytest.raises(blobs.BlobError) as refusal:
        store.put(sha256, len(data), 0, data)
    assert refusal.value.code == "bad-archive"
    assert not store.present(sha256)
    assert listing(store.root) == []
    assert listing(Path(store.root).parent) == ["code"]


def unpacked(store: blobs.BlobStore, sha256: str) -> dict[str, bytes]:
    root = Path(store.path(sha256))
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

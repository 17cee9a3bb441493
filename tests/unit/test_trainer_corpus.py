"""The text that gpt learns from: the same for every rank, bounded, and joined once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trainer.errors import UsageError
from trainer.tasks import corpus as module
from trainer.tasks.corpus import cache_folder, corpus


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENCAMP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "text"
    (root / "b").mkdir(parents=True)
    (root / "b" / "2.txt").write_bytes(b"second ")
    (root / "b" / "1.txt").write_bytes(b"first ")
    (root / "a.md").write_bytes(b"zeroth ")
    (root / "empty").touch()
    (root / ".hidden").write_bytes(b"no")
    (root / "broken").symlink_to(root / "nowhere")
    return root


def text(folder: Path | None = None) -> bytes:
    return bytes(corpus(str(folder) if folder else "").tolist())


def test_files_are_joined_in_a_fixed_order(folder: Path) -> None:
    assert text(folder) == b"zeroth first second "


def test_pythons_own_sources_are_the_same_amount_everywhere() -> None:
    data = corpus("")
    assert len(data) == module.OWN_BYTES
    assert b"def " in bytes(data[:20_000].tolist())


def test_joined_once_and_anew_when_a_file_changes(folder: Path, home: Path) -> None:
    text(folder)
    (joined,) = cache_folder().iterdir()
    assert joined.parent == home / "data"
    before = joined.stat()
    assert text(folder) == b"zeroth first second "
    assert joined.stat().st_mtime_ns == before.st_mtime_ns
    assert joined.stat().st_ino == before.st_ino
    (folder / "a.md").write_bytes(b"Zeroth and more ")
    assert text(folder) == b"Zeroth and more first second "


def test_a_half_written_cache_is_not_used(folder: Path) -> None:
    text(folder)
    (joined,) = cache_folder().iterdir()
    joined.write_bytes(b"half")
    assert text(folder) == b"zeroth first second "


def test_ranks_may_join_at_the_same_time(folder: Path) -> None:
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(text(folder))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"zeroth first second "] * 6
    assert len(list(cache_folder().iterdir())) == 1


def test_nowhere_to_write_is_no_hindrance(folder: Path, home: Path) -> None:
    home.touch()
    assert text(folder) == b"zeroth first second "


def test_a_large_folder_is_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLDER_BYTES", 9)
    assert text(folder) == b"zeroth fi"


def test_folders_without_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder on this host"):
        corpus(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no readable text"):
        corpus(str(tmp_path / "empty"))


def test_the_cache_without_encamp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENCAMP_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/encamp")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert cache_folder() == Path("/home/x/.cache/encamp")

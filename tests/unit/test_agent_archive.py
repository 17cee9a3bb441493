"""Many hosts that connect at once get one archive, which one thread has made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent import bundle
from tui.fleet import agent_archive
from tui.fleet.errors import HostError

HOSTS = 8


@pytest.fixture(autouse=True)
def unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing was put together before, neither in this process nor on the disk."""
    monkeypatch.setattr(agent_archive.paths, "state_dir", lambda: tmp_path)
    agent_archive._archive.cache_clear()
    yield
    agent_archive._archive.cache_clear()


def test_all_hosts_get_the_archive_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    condense, lock, found = bundle.condense, threading.Lock(), []

    def alone(source: bytes) -> bytes:
        assert lock.acquire(blocking=False), "ast.parse in two threads at once fails in Python 3.11"
        try:
            found.append(source)
            return condense(source)
        finally:
            lock.release()

    monkeypatch.setattr(bundle, "condense", alone)
    together = threading.Barrier(HOSTS)

    def ask(_: int) -> bundle.Bundle:
        together.wait(20)
        return agent_archive.archive()

    with ThreadPoolExecutor(HOSTS) as hosts:
        first, *others = hosts.map(ask, range(HOSTS))
    assert all(other is first for other in others)
    assert len(found) == len(bundle._sources()), "each source was read once"


def test_what_is_missing_here_is_said_and_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> bundle.Bundle:
        raise bundle.BundleError("no nvidia-ml-py is installed")

    with monkeypatch.context() as patch:
        patch.setattr(bundle, "build", broken)
        with pytest.raises(HostError, match="cannot be put together here: no nvidia-ml-py"):
            agent_archive.archive()
    assert agent_archive.archive().data

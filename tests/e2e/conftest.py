"""One real sshd for all end-to-end tests that leave it as it is, and a user who has added it as `box`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.camp import Camp, Terminal
from e2e.cluster import Cluster
from lab.lab import Lab
from ssh.sshd import Sshd


@pytest.fixture(scope="session")
def box(sshd_possible: None) -> Iterator[Sshd]:
    """The host."""
    with Sshd() as server:
        yield server


@pytest.fixture(scope="session")
def camp(box: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Camp:
    """The user."""
    camp = Camp(tmp_path_factory.mktemp("camp"))
    camp.add(box)
    return camp


@pytest.fixture
def newcomer(tmp_path: Path) -> Camp:
    """A user without any host."""
    return Camp(tmp_path)


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Iterator[Cluster]:
    """A user with a lab in which there is no host yet."""
    with contextlib.closing(Cluster(lab, Camp(tmp_path))) as cluster:
        yield cluster


@pytest.fixture
def terminal(newcomer: Camp) -> Iterator[Callable[..., Terminal]]:
    """Start commands on terminals."""
    started: list[Terminal] = []

    def start(*words: str, screen: bool = False) -> Terminal:
        started.append(Terminal(newcomer, *words, screen=screen))
        return started[-1]

    yield start
    for each in started:
        each.close()

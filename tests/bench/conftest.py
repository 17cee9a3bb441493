"""Benchmarks use the same real hosts as the agent's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# That folder cannot be a package: its name is the product's.
sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

from agent_client import AgentHost


@pytest.fixture
def agent_host(tmp_path: Path) -> Iterator[AgentHost]:
    """A host reached through the real relay, with nothing installed but the agent."""
    host = AgentHost(str(tmp_path / "host"))
    yield host
    host.close()

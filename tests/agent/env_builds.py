"""Builds of environments as the agent does them, asked for by tests."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_client import NONCE, AgentHost, kill

from agent import wire

PIP = Path(find_spec("pip").origin or "").parent  # type: ignore[union-attr]
"""The package."""


class Build:
    """One who asks for an environment and hears how it goes."""

    def __init__(self, host: AgentHost, packages: tuple[str, ...], index: Path | None, **fields: Any) -> None:
        self.relay = subprocess.Popen(
            host.command("build-env", NONCE, host.home),
            env=host.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        only = () if index is None else ("--no-index", "--find-links", str(index))
        pip_args = (*only, *fields.pop("pip_args", ()))
        setup = {"packages": packages, "pip_args": pip_args, "recipe": fields.pop("recipe", "")}
        self.setup = wire.from_json(wire.EnvSetup, json.loads(json.dumps(setup)))
        asked = {"python": sys.executable, "setup": setup, **fields}
        assert self.relay.stdin is not None
        self.relay.stdin.write(json.dumps(asked).encode() + b"\n")
        self.relay.stdin.flush()
        self.joined = False
        self.output = ""

    def answer(self) -> dict[str, Any]:
        """What came of it; what was said meanwhile is in `output`."""
        try:
            while True:
                told = self.next()
                for key in ("built", "failed"):
                    if key in told:
                        assert self.relay.wait(10) == 0
                        return dict(told[key])
        finally:
            self.leave()

    def next(self) -> dict[str, Any]:
        """The next line; the tests' own time limit is the limit here too."""
        assert self.relay.stdout is not None
        line = self.relay.stdout.readline()
        if line.strip() == NONCE.encode():
            return self.next()
        assert line, "it ended without a word"
        told: dict[str, Any] = json.loads(line)
        self.output += told.get("output", "")
        self.joined |= told.get("joined", False)
        return told

    def leave(self) -> None:
        """Hang up."""
        assert self.relay.stdin is not None
        assert self.relay.stdout is not None
        self.relay.stdin.close()
        self.relay.wait(10)
        self.relay.stdout.close()

    def lose(self) -> None:
        """End as by a lost connection."""
        kill(self.relay.pid)
        self.leave()


def run(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def bare_python(folder: Path, *, pip: bool = True) -> str:
    """An interpreter that has no packages but pip, if that."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "bare")], check=True)
    if pip:
        (site,) = folder.glob("bare/lib/python*/site-packages")
        (site / "pip").symlink_to(PIP)
    return str(folder / "bare" / "bin" / "python")

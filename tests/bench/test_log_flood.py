"""A rank that prints 100,000 lines a second for ten seconds, followed by a viewer, against a plain file."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from agent_client import AgentHost, Connection

from agent import wire

pytestmark = [pytest.mark.bench, pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("print_at_a_rate.py")
LINES, RATE = 1_000_000, 100_000
PAIRS = 3
FLOOR = 0.98


def test_no_byte_is_lost_and_the_rank_is_not_held_up(agent_host: AgentHost, tmp_path: Path) -> None:
    viewer = agent_host.connect()
    speeds, processor = [], []
    for pair in range(PAIRS):
        plain_log = tmp_path / f"plain-{pair}.log"
        with plain_log.open("wb") as file:
            subprocess.run(command(tmp_path / "plain.json"), stdout=file, check=True)
        received, sent_as_gap = followed(viewer, f"flood-{pair}", tmp_path / "ours.json")
        assert received == plain_log.read_bytes()
        plain, ours = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("plain", "ours"))
        speeds.append(plain["seconds"] / ours["seconds"])
        processor.append(ours["cpu_seconds"] / plain["cpu_seconds"])
        print(f"\n{len(received) / 1e6:.0f} MB byte for byte, {sent_as_gap / 1e6:.1f} MB fetched after gaps")
    print(f"lines/s, followed / plain file: {speeds}; the rank's processor time: {processor}")
    assert statistics.median(speeds) >= FLOOR


def command(out: Path) -> list[str]:
    """The script's command line."""
    return [sys.executable, str(SCRIPT), str(out), str(LINES), str(RATE)]


def followed(viewer: Connection, run: str, out: Path) -> tuple[bytes, int]:
    """Run the script as a rank and follow its log: all of its bytes, and how many of them came as gaps."""
    args = (str(out), str(LINES), str(RATE))
    spec = wire.LaunchSpec(run, run, "bench", "ddp", "script", str(SCRIPT), args, "", 1, sys.executable)
    viewer.request("launch", timeout=60, spec=wire.to_json(spec), actor="bench")
    stream = {"run": run, "attempt": 1, "stream": "rank0"}
    viewer.request("log_follow", **stream, offset=0)
    pieces: dict[int, bytes] = {}
    gaps: list[wire.Gap] = []
    size: int | None = None
    while size is None or sum(map(len, pieces.values())) + sum(gap.end - gap.start for gap in gaps) < size:
        message = viewer.message(60)
        if isinstance(message, wire.Log):
            pieces[message.offset] = wire.payload(message.data)
        elif isinstance(message, wire.Gap):
            gaps.append(message)
        elif isinstance(message, wire.Run) and message.run == run and message.state in wire.END_STATES:
            assert message.state == "finished", message.reason
            size = Path(viewer.hello.home, f"runs/{run}/attempts/1/rank0.log").stat().st_size
    for gap in gaps:
        offset = gap.start
        while offset < gap.end:
            part = viewer.request("log_read", **stream, offset=offset, length=gap.end - offset)
            pieces[offset] = wire.payload(part["data"])
            offset += len(pieces[offset])
    return b"".join(pieces[offset] for offset in sorted(pieces)), sum(gap.end - gap.start for gap in gaps)

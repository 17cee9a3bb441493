"""What the fleet screen costs with 200 hosts of 8 GPUs that report once a second, on a terminal of 200x50."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

HOSTS, GPUS, SECONDS = 200, 8, 8


def run_on_a_terminal(out: Path, what: str, *, columns: int = 200, rows: int = 50) -> dict[str, float]:
    """Run `fleet_app.py` on a pseudo-terminal that is read as fast as it is written to."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    written = 0
    tail = b""

    def drain() -> None:
        nonlocal written, tail
        try:
            while data := os.read(master, 1 << 16):
                written += len(data)
                tail = (tail + data)[-8192:]
        except OSError:
            pass  # the other end is closed

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    command = [sys.executable, str(Path(__file__).with_name("fleet_app.py"))]
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        [*command, str(out), str(HOSTS), str(GPUS), str(SECONDS), what],
        stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        assert process.wait(timeout=90) == 0, tail.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        reader.join(timeout=5)
        os.close(master)
    result: dict[str, float] = json.loads(out.read_text())
    result["bytes_per_second"] = written / SECONDS
    return result


@pytest.mark.bench
def test_two_hundred_hosts(tmp_path: Path) -> None:
    ours = run_on_a_terminal(tmp_path / "ours.json", "table")
    peer = run_on_a_terminal(tmp_path / "peer.json", "peer")
    print(json.dumps({"ours": ours, "DataTable": peer}, indent=1))
    assert ours["cpu_share"] <= 0.30
    assert ours["frame_p99"] < 0.050
    assert ours["frames_per_second"] > 0.5
    assert ours["cpu_share"] < peer["cpu_share"]
    assert ours["frame_p99"] < peer["frame_median"] / 3

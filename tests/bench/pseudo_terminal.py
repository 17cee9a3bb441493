"""Runs a program on a pseudo-terminal that is read as fast as it is written to, as a quick terminal does."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

LONGEST_SECONDS = 90


def run_on_a_terminal(script: str, *arguments: object, columns: int, rows: int = 50) -> int:
    """Run a Python script of this folder to its end; return how many bytes it wrote to the terminal."""
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
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
    )  # fmt: skip
    os.close(slave)
    try:
        assert process.wait(timeout=LONGEST_SECONDS) == 0, tail.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        reader.join(timeout=5)
        os.close(master)
    return written

"""What reaches the user's terminal, byte for byte, while a hostile log is on the screen."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

MARK = "OWNED"

ATTACKS = [
    f"\x1b]0;{MARK}\x07",
    f"\x1b]2;{MARK}\x1b\\",
    f"\x1b]52;c;{MARK}\x07",
    f"\x1b]8;;http://{MARK}\x1b\\text\x1b]8;;\x1b\\",
    f"\x1b]1337;File=name={MARK}:AAAA\x07",
    f"\x1bP+q{MARK}\x1b\\",
    f"\x1b_{MARK}\x1b\\",
    f"\x1b^{MARK}\x1b\\",
    f"\x9d0;{MARK}\x9c",
    "\x1bc",
    "\x1b[2J",
    "\x1b[3J",
    "\x1b[6n",
    "\x1b[c",
    "\x1b[>c",
    "\x1b[21t",
    "\x1b[5i",
    "\x1b[4h",
    "\x1b[?7l",
    "\x1b[!p",
    "\x1b[20;3;1t",
    "\x1b(0",
    "\x1b#8",
    "\x1b%@",
    "\x9b31;1H",
    "\x9b2J",
    "\x0e",
    "\x0f",
    "\x07",
    "\x05",
    "\x00",
    "\x08\x08",
    "\x7f",
    "\x85",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u2028",
    "\x1b",
    "\x1b[",
    "\x1b]",
]  # fmt: skip

SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x1a\x1c-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)


def shown_on_a_terminal(log: Path) -> str:
    """Everything that the app writes to its terminal while it shows the whole log."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    received = bytearray()

    def drain() -> None:
        try:
            while data := os.read(master, 1 << 16):
                received.extend(data)
        except OSError:
            pass  # the other end is closed

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("log_terminal.py")), str(log)],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
    )  # fmt: skip
    os.close(slave)
    try:
        assert process.wait(timeout=60) == 0, received[-4096:].decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        reader.join(timeout=5)
        os.close(master)
    return received.decode()


def kinds(output: str) -> set[str]:
    """The kinds of sequences in it, colours and cursor positions apart; what a sequence carries is kept."""
    return {
        found
        for found in SEQUENCE.findall(output)
        if not re.fullmatch(r"\x1b\[[0-9;:]*m|\x1b\[[0-9;]*H|\r|\n", found)
    }


@pytest.mark.slow
def test_nothing_of_a_hostile_log_reaches_the_terminal(tmp_path: Path) -> None:
    """The app writes exactly the kinds of sequences that it writes for a harmless log of the same shape."""
    hostile, harmless = tmp_path / "hostile.log", tmp_path / "harmless.log"
    lines = [f"{number:03d} before {attack} after" for number, attack in enumerate(ATTACKS * 2)]
    garbage = bytes(range(256)) * 8
    hostile.write_bytes(
        "\n".join(lines).encode() + b"\n" + garbage + b"\n" + os.urandom(20_000) + b"\nthe end\n"
    )
    harmless.write_bytes(re.sub(rb"[^ -~\n]", b".", hostile.read_bytes()))
    seen, expected = shown_on_a_terminal(hostile), shown_on_a_terminal(harmless)
    for text in ("000 before", "040 before", "the end"):
        assert text in seen
    assert kinds(seen) <= kinds(expected)
    for sequence in SEQUENCE.findall(seen):
        assert MARK not in sequence

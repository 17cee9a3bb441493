"""What the supervisor writes into an attempt at its end, also where the disk is full."""

from __future__ import annotations

import os
import time

from . import ending, files

RETRY_SECONDS = 5.0
"""Pause before the end is recorded again on a disk that is full."""


def write_end(attempt_dir: str, end: dict[str, object]) -> None:
    """Write exit.json, the last thing of an attempt; on a full disk again and again. Raises OSError."""
    while True:
        try:
            files.write_json_in_reserve(os.path.join(attempt_dir, "exit.json"), end)
            break
        except OSError as error:
            if error.errno not in files.NO_SPACE:
                raise
        time.sleep(RETRY_SECONDS)
    files.drop_reserve(os.path.join(attempt_dir, "stop.json"))


def add_event(attempt_dir: str, name: str, text: str) -> None:
    """Add a line to events.jsonl in the supervisor's name, if the disk takes it."""
    event = {"time": time.time(), "name": name, "actor": "supervisor", "text": text}
    try:
        files.append_json_line(os.path.join(attempt_dir, "events.jsonl"), event)
    except OSError:
        pass  # a full disk; of an end, exit.json says the same, later


def remove_secrets(attempt_dir: str) -> None:
    """Remove the values that the ranks got as secrets."""
    for name in os.listdir(attempt_dir):
        if name.startswith("secrets.json"):
            try:
                os.unlink(os.path.join(attempt_dir, name))
            except OSError:
                pass  # gone already; otherwise the daemon tries again at its start


def record_ranks(attempt_dir: str, ranks: range) -> None:
    """Say for ranks that could not do so themselves, because they were killed, how they ended."""
    for rank, code in ending.exit_codes(ending.launcher_tail(attempt_dir)).items():
        path = os.path.join(attempt_dir, f"rank{rank}", "exit.json")
        if rank in ranks and not os.path.exists(path):
            try:
                files.write_json(path, {"code": code, "time": time.time()})
            except OSError:
                pass  # a full disk, or a rank that never had a folder: what is not known is not shown


def code_from_ranks(attempt_dir: str, ranks: range) -> int | None:
    """0 when every rank says that it ended well; else nobody knows how the launcher ended."""
    for rank in ranks:
        recorded = files.read_json(os.path.join(attempt_dir, f"rank{rank}", "exit.json")) or {}
        if recorded.get("code") != 0:
            return None
    return 0

"""Which variables an attempt inherits from the daemon's own environment, and which mark its processes."""

from __future__ import annotations

import os

MARKS = ("ENCAMP_RUN", "ENCAMP_ATTEMPT", "ENCAMP_ATTEMPT_DIR")
"""Together in a process's environment they say that it belongs to an attempt, however it was forked."""

DROPPED_PREFIXES = ("SSH_", "ENCAMP_", "TMUX", "XDG_SESSION_", "PET_", "TORCHELASTIC_")
"""The connection that happened to start the daemon, what is ours to set, and torchrun's own variables."""

DROPPED = frozenset(
    [
        "_", "OLDPWD", "PWD", "SHLVL", "STY", "WINDOW", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR",
        "PYTHONHOME", "VIRTUAL_ENV", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "INVOCATION_ID",
        "JOURNAL_STREAM",
        "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    ]
)  # fmt: skip
"""What belongs to the login, to another interpreter, or to a rank."""


def inherited() -> dict[str, str]:
    """This process's environment without what an attempt must not inherit."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in DROPPED and not name.startswith(DROPPED_PREFIXES)
    }

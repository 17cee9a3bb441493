"""Where encamp keeps its files on the engineer's machine. Nobody else builds such a path."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def config_dir() -> Path:
    """What the user writes or may write: hosts.toml, profiles. `ENCAMP_CONFIG_DIR` overrides it."""
    return _directory("ENCAMP_CONFIG_DIR", platformdirs.user_config_path("encamp"))


def state_dir() -> Path:
    """What encamp remembers by itself: accepted host keys, logs. `ENCAMP_STATE_DIR` overrides it."""
    return _directory("ENCAMP_STATE_DIR", platformdirs.user_state_path("encamp"))


def hosts_file() -> Path:
    """The inventory of hosts."""
    return config_dir() / "hosts.toml"


def known_hosts_file() -> Path:
    """The host keys that the user accepted, in OpenSSH's format."""
    return state_dir() / "known_hosts"


def _directory(variable: str, default: Path) -> Path:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else default

"""Running the machine's tools, and whether a lab is possible here at all."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

from ssh.sshd import SSHD

NAMESPACES = Path("/run/netns")
"""Where `ip netns` keeps the names of network namespaces."""

_TOOLS = ("ip", "nft", "unshare", "nsenter", "sysctl", "ssh", "ssh-keygen")


class Impossible(Exception):
    """This machine cannot do what was asked of the lab; the text says why."""


class ToolFailed(Exception):
    """A tool that should work did not; the text has its words."""


def refuse(reason: str) -> NoReturn:
    """Raise Impossible: what a lab does about a wish it cannot fulfil, unless it is told otherwise."""
    raise Impossible(reason)


def run(*words: object, stdin: str | None = None) -> str:
    """Run a tool and return its output. Raises ToolFailed."""
    done = subprocess.run(
        [str(word) for word in words], input=stdin, capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode != 0:
        raise ToolFailed(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@functools.lru_cache(maxsize=1)
def why_not() -> str:
    """Why there can be no lab on this machine, or nothing."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if SSHD is None:
        missing.append("sshd")
    if missing:
        return f"not installed, or not on the PATH: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "namespaces for hosts need root"
    for words in (("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "true"),
                  ("unshare", "--net", "nft", "list", "ruleset"),
                  ("unshare", "--net", "ip", "link", "add", "type", "bridge")):  # fmt: skip
        try:
            run(*words)
        except ToolFailed as error:
            return f"no namespaces here: {error}"
    return ""

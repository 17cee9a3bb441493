"""What a host is made of: the shell script that turns fresh namespaces into a machine, and its interpreters.

The file system is the machine's own, but what a host must have for itself is replaced: home, /tmp, /var/tmp,
/run, /dev/shm, /etc/ssh and a few files. The checkout is hidden, so that what runs on a host got there over
SSH; the interpreter of the tests and its packages are shown.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from . import cgroups
from .options import HostOptions

CHECKOUT = Path(__file__).resolve().parents[2]
_PYTHON3 = (Path("/usr/local/bin/python3"), Path("/usr/bin/python3"))
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Machine:
    """The files of one host, in `folder`."""

    def __init__(self, folder: Path, hostname: str, options: HostOptions) -> None:
        self.folder = folder
        self.hostname = hostname
        self.options = options
        self.home = folder / "home"
        self.etc = folder / "etc"
        self.bin = folder / "bin"
        self.boot_id = folder / "boot_id"
        self._own = {
            Path("/root"): self.home,
            Path("/tmp"): folder / "tmp",
            Path("/var/tmp"): folder / "var-tmp",
            CHECKOUT: folder / "checkout",
        }
        """Place on the host -> the folder that is there."""

    def create(self) -> None:
        """Make the folders, all empty."""
        for path in (self.etc, self.bin, *self._own.values()):
            path.mkdir(parents=True, exist_ok=True)
        for place in self._own:
            outer = self._own_place(place.parent)
            if outer is not None:
                (self._own[outer] / place.relative_to(outer)).mkdir(parents=True, exist_ok=True)
        self._own[Path("/tmp")].chmod(0o1777)
        self._own[Path("/var/tmp")].chmod(0o1777)
        self.home.chmod(0o700)

    def script(self, sshd: str, python: Path | None, *, limited: bool) -> str:
        """What a shell does in fresh namespaces to become this host. `limited`: it has groups of its own."""
        lines = ["set -e", "cd /"]
        bind = "mount --bind {} {}".format
        for path in _outermost([Path(sys.base_prefix), Path(sys.prefix), *_prefix(python)]):
            place = self._own_place(path)
            if place is not None:
                (self._own[place] / path.relative_to(place)).mkdir(parents=True, exist_ok=True)
                staged = shlex.quote(str(self._own[place] / path.relative_to(place)))
                lines += [bind(shlex.quote(str(path)), staged), f"mount -o remount,bind,ro {staged}"]
        if limited:
            lines += cgroups.mounting()
        for name in ("passwd", "shadow", "hosts"):
            lines.append(bind(self.etc / name, f"/etc/{name}"))
        lines.append(bind(self.etc, "/etc/ssh"))
        lines.append(bind(self.boot_id, BOOT_ID))
        if python is not None:
            others = {path.resolve() for path in _PYTHON3 if path.exists()} - {python}
            lines += [bind(self._wrapper(python), path) for path in others]
        lines += [
            "mount -t tmpfs -o mode=755 tmpfs /run",
            "mkdir /run/sshd",
            f"mount -t tmpfs -o mode=1777,size={self.options.shm} tmpfs /dev/shm",
            f"hostname {self.hostname}",
        ]
        # Outer places first. Their sources are opened before, because one of them will hide them all.
        places = list(enumerate(sorted(self._own, key=lambda place: len(place.parts)), start=3))
        lines += [f"exec {number}<{shlex.quote(str(self._own[place]))}" for number, place in places]
        for number, place in places:
            lines.append(f"mount --rbind /proc/self/fd/{number}/. {shlex.quote(str(place))}")
            if place == Path("/root") and self.options.noexec_home:
                lines.append("mount -o remount,bind,noexec /root")
        lines += [f"exec {number}<&-" for number, _ in places]
        lines.append(f"exec {sshd} -D -e -f /etc/ssh/sshd_config")
        return "\n".join(lines)

    def _own_place(self, path: Path) -> Path | None:
        inside = [place for place in self._own if path.is_relative_to(place)]
        return max(inside, key=lambda place: len(place.parts), default=None)

    def _wrapper(self, python: Path) -> Path:
        """A file to be `python3`: an interpreter finds its library by its path, so it cannot itself be."""
        path = self.bin / "python3"
        path.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        path.chmod(0o755)
        return path


def interpreter(version: str, refuse: Callable[[str], NoReturn]) -> Path:
    """An interpreter of that version on this machine; calls `refuse` when there is none."""
    home = Path(pwd.getpwuid(os.geteuid()).pw_dir)  # tests change $HOME
    found = sorted(home.glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    found.append(Path(sys.base_prefix, "bin", f"python{version}"))
    found += [Path(path) for path in (shutil.which(f"python{version}"),) if path]
    working = next((path.resolve() for path in found if path.exists() and _prefix(path)), None)
    if working is None:
        refuse(f"there is no Python {version} on this machine")
    return working


def _prefix(python: Path | None) -> list[Path]:
    """Where an interpreter and its library are; nothing when it does not run."""
    if python is None:
        return []
    asked = [str(python), "-S", "-c", "import sys; print(sys.base_prefix)"]
    answer = subprocess.run(asked, check=False, capture_output=True, text=True)
    return [Path(answer.stdout.strip())] if answer.returncode == 0 else []


def _outermost(paths: list[Path]) -> list[Path]:
    real = {path.resolve() for path in paths}
    return sorted(path for path in real if not any(parent in real for parent in path.parents))

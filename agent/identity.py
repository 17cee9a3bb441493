"""Who answers on this host: the identity that survives reboots, and the Hello made of it."""

from __future__ import annotations

import os
import pwd
import sys
import time

from . import files, instance, paths, process, wire


class Identity:
    """Everything about this daemon that does not change while it runs."""

    def __init__(self, home: str, holder: instance.Holder, started: float) -> None:
        self._home = home
        self._holder = holder
        self._started = started
        self._host_id = host_id(home)
        self._boot_id = process.boot_id()
        self._user = _user()

    def hello(self) -> wire.Hello:
        """The first message on a connection."""
        return wire.Hello(
            protocol_major=wire.PROTOCOL[0],
            protocol_minor=wire.PROTOCOL[1],
            version=self._holder.release,
            build=self._holder.build,
            host_id=self._host_id,
            boot_id=self._boot_id,
            hostname=os.uname().nodename,
            user=self._user,
            home=self._home,
            python=sys.executable,
            pid=os.getpid(),
            time=time.time(),
            started=self._started,
        )


def host_id(home: str) -> str:
    """The random identity of this ENCAMP_HOME, made on first use. Raises OSError when it cannot be stored."""
    path = paths.host_file(home)
    known = (files.read_json(path) or {}).get("id")
    if isinstance(known, str) and len(known) == 32:
        return known
    made = os.urandom(16).hex()
    files.write_json(path, {"id": made})
    return made


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())  # a container started with a number that nobody has a name for

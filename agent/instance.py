"""One daemon per ENCAMP_HOME: the lock that guarantees it, the line that names it, and how it is started.

The relay runs this on every connection, so it imports nothing that takes a millisecond: `_socket` instead
of `socket` (which builds enums), no typing, no re, no json.

Sockets and files are named relative to ENCAMP_HOME, which is the working directory of relay and daemon:
the kernel allows 107 bytes for the path of a unix socket, and home directories of clusters are longer.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import select
import sys
import time

from . import version

SOCKET = "agent.sock"
LOCK = "agent.lock"
LOG = "agent.log"

START_SECONDS = 20.0
"""How long a daemon may take from its start to accepting connections: a loaded machine, a cold disk."""

START_FROM_SOURCE = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from agent.__main__ import main; sys.exit(main(sys.argv[1:]))"
)

PROTOCOL_MAJOR = 1
"""`wire.PROTOCOL[0]`, repeated here because importing `wire` costs more than the whole relay."""


class Unusable(Exception):
    """ENCAMP_HOME cannot be used; the text is one sentence for the user."""


class StartFailed(Exception):
    """The daemon ended before it accepted connections; the text is one sentence for the user."""


class EndedAtOnce(StartFailed):
    """It ended by itself, or was killed: the next one may live."""


class Holder:
    """Who holds the lock, as the daemon wrote it into `agent.lock`."""

    def __init__(self, pid: int, start_time: int, boot_id: str, build: str, release: str, major: int) -> None:
        self.pid = pid
        self.start_time = start_time
        self.boot_id = boot_id
        self.build = build
        self.release = release
        self.major = major

    def line(self) -> str:
        """The one line of `agent.lock`."""
        return f"{self.pid} {self.start_time} {self.boot_id} {self.build} {self.release} {self.major}\n"

    def alive(self) -> bool:
        """Whether that very process still runs on this machine."""
        from . import process  # not needed, and not paid for, on the ordinary way through the relay

        return self.boot_id == process.boot_id() and process.alive(self.pid, self.start_time)


def enter_home(home: str) -> None:
    """Make `home` a directory of ours with mode 0700 and the working directory. Raises Unusable."""
    try:
        os.makedirs(home, 0o700, exist_ok=True)
        os.chdir(home)
        status = os.stat(".")
        if status.st_uid != os.geteuid():
            raise Unusable(f"{home} belongs to user {status.st_uid}, not to {os.geteuid()}")
        if status.st_mode & 0o077:
            os.chmod(".", 0o700)
    except OSError as error:
        raise Unusable(f"cannot use {home}: {error.strerror}") from error
    os.environ["ENCAMP_HOME"] = os.getcwd()


def code_root() -> str:
    """Where this code was loaded from: the path of an agent.pyz, or a source tree."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def build_id() -> str:
    """SHA-256 of the agent.pyz that runs, in hex; `source` when it runs from a source tree.

    An archive is named by its hash when it is installed, and then the name is believed: whoever can write
    into ENCAMP_HOME can replace the code just as well.
    """
    root = code_root()
    name = os.path.basename(root)[: -len(".pyz")] if root.endswith(".pyz") else ""
    if len(name) == 64 and not name.strip("0123456789abcdef"):
        return name
    if not os.path.isfile(root):
        return "source"
    import hashlib

    with open(root, "rb") as archive:
        return hashlib.sha256(archive.read()).hexdigest()


def agent_command(*arguments: str) -> list[str]:
    """The command line that runs a sub-command of this same code.

    `-I -S`: neither the user's PYTHON* variables nor what is installed in site-packages can disturb the
    agent, and `site` would take longer to start than the relay.
    """
    root = code_root()
    if os.path.isfile(root):
        return [sys.executable, "-I", "-S", root, *arguments]
    return [sys.executable, "-I", "-S", "-c", START_FROM_SOURCE, root, *arguments]


def take_lock() -> int | None:
    """Take `agent.lock` and return its descriptor, or None while another process holds it.

    Raises Unusable when the file system has no locks or no space.
    """
    try:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unusable(f"cannot write {os.path.abspath(LOCK)}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:
        os.close(lock)
        raise Unusable(f"cannot lock {os.path.abspath(LOCK)}: {error.strerror}") from error
    return lock


def sign_lock(lock: int) -> Holder:
    """Write who we are into the lock file. Raises OSError."""
    from . import process

    pid = os.getpid()
    started = process.start_time(pid) or 0
    holder = Holder(pid, started, process.boot_id() or "-", build_id(), version.VERSION, PROTOCOL_MAJOR)
    line = holder.line().encode("ascii")
    os.pwrite(lock, line, 0)  # before the file is cut: on a full disk its block may not come back
    os.ftruncate(lock, len(line))
    return holder


def read_holder() -> Holder | None:
    """Who signed the lock file last, or None when nobody did. It may be gone: see `Holder.alive`."""
    try:
        with open(LOCK, encoding="ascii") as file:
            pid, started, boot, build, release, major = file.readline(1000).split()
        return Holder(int(pid), int(started), boot, build, release, int(major))
    except (OSError, ValueError):
        return None


def dial() -> _socket.socket | None:
    """A connection to the daemon's socket, or None when nobody listens there."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.connect(SOCKET)
    except OSError:
        sock.close()
        return None
    return sock


def spawn(lock: int) -> None:
    """Start a daemon that inherits `lock`, and return when it accepts connections. Raises StartFailed."""
    ready, report = os.pipe()
    said = _log_size()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _become_daemon(lock, report)
        finally:
            os._exit(1)  # whatever happens in the child, it never returns into its parent's code
    os.close(report)
    os.close(lock)
    os.waitpid(child, 0)
    waiting = select.poll()
    waiting.register(ready, select.POLLIN)
    answered = waiting.poll(START_SECONDS * 1000)
    word = os.read(ready, 16) if answered else b""
    os.close(ready)
    if word != b"ready":
        if not os.statvfs(".").f_bavail:
            raise StartFailed(f"no space is left on the disk of {os.getcwd()}")
        if answered:
            raise EndedAtOnce(f"the agent's daemon ended at once: {last_words(said)}")
        raise StartFailed(f"the agent's daemon was not ready after {START_SECONDS:.0f} s: {last_words(said)}")


def _become_daemon(lock: int, report: int) -> None:
    """Replace this process by the daemon. No descriptor of the connection survives: it could never close."""
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    wanted = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in (null, log, log, lock, report)]
    for target, source in enumerate(wanted):
        os.dup2(source, target)
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= len(wanted):
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor that listed the directory
    for variable in list(os.environ):
        if variable.startswith("ENCAMP_") and variable != "ENCAMP_HOME":
            del os.environ[variable]  # they mark what belongs to an attempt and is ended with it
    command = agent_command("daemon", "--lock", "3", "--ready", "4")
    os.execv(command[0], command)


def _log_size() -> int:
    try:
        return os.stat(LOG).st_size
    except OSError:
        return 0


def last_words(since: int = 0) -> str:
    """The last line of agent.log that was written after byte `since`, and where that is."""
    try:
        with open(LOG, "rb") as file:
            file.seek(max(since, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError as error:
        return f"no log: {error.strerror}"
    said = next((line.strip()[:500] for line in reversed(lines) if line.strip()), "it said nothing")
    return f"{said} (see {os.path.abspath(LOG)})"


def wait_released(seconds: float) -> int | None:
    """Wait until the lock is free and return it, or None when it is still held after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        lock = take_lock()
        if lock is not None or time.monotonic() > deadline:
            return lock
        time.sleep(0.01)

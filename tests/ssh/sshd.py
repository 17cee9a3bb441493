"""Real OpenSSH servers on loopback: own keys, own home, own user database, and the faults of rented hosts.

A server runs as root in a mount namespace of its own, where /etc/passwd and /etc/shadow are copies that give
the login user a temporary home, a shell and a password, and /var/tmp is its own. Nothing of the machine is
changed, and everything that was started from a home ends with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pytest
from waiting import wait_until

from tui.fleet.hosts import Host
from tui.fleet.ssh.server import end_processes_of

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")

PASSWORD = "correct horse"
_PASSWORD_HASH = (
    "$6$encamp$sUG2tqIjaG/DCBzH2AqZlk/IXBLhodtolxferwggFEeICn1ewUXRvdFiDJ6JGfdoy3VjHn0eOP/wOSTri3p1t1"
)

_NAMESPACE = (
    "mount --bind {etc}/passwd /etc/passwd && mount --bind {etc}/shadow /etc/shadow"
    " && mount -t tmpfs -o mode=1777 tmpfs /var/tmp"
    "{mounts} && exec {sshd} -D -e -f {etc}/sshd_config"
)


@dataclass(frozen=True)
class Options:
    """What a server is like. The defaults are those of a plain rented machine: keys only, root, bash."""

    shell: str = "/bin/bash"
    uid: int = 0
    banner: str = ""
    bashrc: str = ""
    password: bool = False
    """Passwords are accepted, and keys are not."""
    keyboard_interactive: bool = False
    authorized_options: str = ""
    """In front of the key in authorized_keys, such as `command="..."`."""
    config: str = ""
    """More lines for sshd_config; the first value of a setting counts, and these come first."""
    environment: tuple[str, ...] = ()
    """NAME=value for the sessions."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Folders in the home to mount a memory file system on, with its options: `(".encamp", "size=64k")`."""
    keys_elsewhere: bool = False
    """authorized_keys does not lie in the home, which may then be mounted over."""


class Sshd:
    """One running server. Use it as a context manager."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.folder = Path(tempfile.mkdtemp(prefix="encamp-sshd-"))
        self.folder.chmod(0o755)
        self.user = "root" if self.options.uid == 0 else "camper"
        self.home = self.folder / "home"
        self.log = self.folder / "sshd.log"
        self.key = self.folder / "id_ed25519"
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._etc = self.folder / "etc"
        keys = self._etc if self.options.keys_elsewhere else self.home / ".ssh"
        self.authorized = keys / "authorized_keys"

    def __enter__(self) -> Sshd:
        try:
            self._write_files()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def environment(self) -> str:
        """Where the agent keeps its files, as its processes' ENCAMP_HOME."""
        return str(self.home / ".encamp")

    def host(self, name: str = "box", **fields: object) -> Host:
        """This server as a host of an inventory, with its key."""
        values: dict[str, object] = {
            "port": self.port,
            "user": self.user,
            "identity_files": (str(self.key),),
            **fields,
        }
        return Host(name, "127.0.0.1", **values)  # type: ignore[arg-type]

    def command(self, *options: str) -> list[str]:
        """OpenSSH's client, ready to run something on this server."""
        return [
            "ssh", "-F", "none", "-p", str(self.port), "-i", str(self.key), "-o", "IdentitiesOnly=yes",
            "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={self.folder}/known",
            "-o", "LogLevel=ERROR", *options, f"{self.user}@127.0.0.1",
        ]  # fmt: skip

    def start(self) -> None:
        """Start, or start again after `stop`, on the same port and with the same keys."""
        assert SSHD is not None
        script = _NAMESPACE.format(etc=self._etc, sshd=SSHD, mounts=self._mounts())
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, message=f"sshd does not answer: {self.log.read_text()}")

    def stop(self) -> None:
        """End the server and its connections at once; what runs in the home goes on."""
        if self.process is not None:
            self.cut()
            self.process.kill()
            self.process.wait()
            self.process = None

    def cut(self) -> int:
        """Kill the processes of all connections, as a lost network or a reboot would, and return how many."""
        assert self.process is not None
        victims = _children(self.process.pid)
        for pid in victims:
            _signal(pid, signal.SIGKILL)
        return len(victims)

    def freeze(self) -> Callable[[], None]:
        """Stop the processes of all connections: they stay open and say nothing. Returns what thaws them."""
        assert self.process is not None
        frozen = [
            descendant for child in _children(self.process.pid) for descendant in (child, *_children(child))
        ]
        for pid in frozen:
            _signal(pid, signal.SIGSTOP)

        def thaw() -> None:
            for pid in frozen:
                _signal(pid, signal.SIGCONT)

        return thaw

    def connections(self) -> int:
        """How many connections there are."""
        assert self.process is not None
        return len(_children(self.process.pid))

    def new_host_key(self, kind: str = "ed25519") -> None:
        """Take another host key, as a machine that was set up anew has; takes effect on `start`."""
        for path in self._etc.glob("host_key*"):
            path.unlink()
        keygen(self._etc / "host_key", kind)

    def certify(self, authority: Path, name: str) -> None:
        """Show a certificate for `name`, signed with the private key `authority`, from now on."""
        subprocess.run(
            ["ssh-keygen", "-q", "-s", authority, "-I", "test", "-h", "-n", name, self._etc / "host_key.pub"],
            check=True,
        )
        with (self._etc / "sshd_config").open("a") as config:
            config.write(f"HostCertificate {self._etc}/host_key-cert.pub\n")
        self.stop()
        self.start()

    def fingerprint(self) -> str:
        """The host key's SHA256 fingerprint as ssh-keygen shows it."""
        output = subprocess.run(
            ["ssh-keygen", "-l", "-f", self._etc / "host_key.pub"], check=True, capture_output=True, text=True
        ).stdout
        return output.split()[1]

    def close(self) -> None:
        """End the server and everything that was started in its home, and remove its files."""
        try:
            self.stop()
            end_processes_of(self.home)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"sshd ended: {self.log.read_text()}"
        with socket.socket() as probe:
            probe.settimeout(5)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0 and probe.recv(4) == b"SSH-"

    def _write_files(self) -> None:
        options = self.options
        Path("/run/sshd").mkdir(exist_ok=True)
        self._etc.mkdir()
        self.home.mkdir()
        keygen(self.key)
        keygen(self._etc / "host_key")
        self.authorized.parent.mkdir(exist_ok=True)
        public = self.key.with_suffix(".pub").read_text()
        self.authorized.write_text(f"{options.authorized_options} {public}".lstrip())
        (self.home / ".bashrc").write_text(options.bashrc)
        (self._etc / "banner").write_text(options.banner)
        (self._etc / "sshd_config").write_text(
            server_config(options, self.port, "127.0.0.1", self._etc, self.authorized)
        )
        write_users(self._etc, self.user, options.uid, self.home, options.shell)
        if options.uid:
            for path in (self.home, *self.home.rglob("*")):
                os.chown(path, options.uid, options.uid)

    def _mounts(self) -> str:
        commands = []
        for folder, mount_options in self.options.mounts:
            (self.home / folder).mkdir(exist_ok=True)
            commands.append(f" && mount -t tmpfs -o mode=700,{mount_options} tmpfs {self.home / folder}")
        return "".join(commands)


def server_config(options: Options, port: int, address: str, etc: Path, authorized: Path) -> str:
    """The sshd_config of a server whose keys and banner lie in `etc`, as the server sees these paths."""
    yes = {True: "yes", False: "no"}
    settings = " ".join(f'"{setting}"' for setting in options.environment)
    lines = [
        options.config,
        f"Port {port}",
        f"ListenAddress {address}",
        f"HostKey {etc}/host_key",
        "PidFile none",
        "StrictModes no",
        "UsePAM no",
        "PermitRootLogin yes",
        f"PasswordAuthentication {yes[options.password]}",
        f"KbdInteractiveAuthentication {yes[options.keyboard_interactive]}",
        f"PubkeyAuthentication {yes[not (options.password or options.keyboard_interactive)]}",
        f"AuthorizedKeysFile {authorized}",
        "PrintMotd no",
        "LogLevel VERBOSE",
        f"Banner {etc}/banner" if options.banner else "",
        f"SetEnv {settings}" if settings else "",
    ]
    return "\n".join(lines) + "\n"


def write_users(etc: Path, user: str, uid: int, home: Path, shell: str) -> None:
    """Write copies of the machine's passwd and shadow to `etc`, in which `user` is as told."""
    entry = f"{user}:x:{uid}:{uid}::{home}:{shell}\n"
    shadow = f"{user}:{_PASSWORD_HASH}:19000:0:99999:7:::\n"
    for name, line in (("passwd", entry), ("shadow", shadow)):
        others = (Path("/etc") / name).read_text().splitlines(keepends=True)
        path = etc / name
        path.write_text(line + "".join(other for other in others if not other.startswith(f"{user}:")))
        path.chmod(0o644 if name == "passwd" else 0o600)


def keygen(path: Path, kind: str = "ed25519") -> None:
    """Make a key pair without a passphrase."""
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(child) for child in children.read_text().split()]
    except OSError:
        return []


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _why_not() -> str:
    """Why servers cannot be run here, or nothing."""
    if SSHD is None:
        return "OpenSSH's sshd is not installed"
    if os.geteuid() != 0:
        return "sshd with a user database of its own needs root"
    unshare = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "mount", "--bind", "/tmp", "/tmp"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if unshare.returncode == 0 else f"no mount namespaces here: {unshare.stderr.strip()}"


@pytest.fixture(scope="session")
def sshd_possible() -> None:
    """Skip where no sshd can run."""
    reason = _why_not()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def run_sshd(sshd_possible: None) -> Iterator[Callable[..., Sshd]]:
    """Start servers: `run_sshd(shell="/bin/dash", banner="Welcome")`; see `Options`."""
    running: list[Sshd] = []

    def run(**options: object) -> Sshd:
        server = Sshd(Options(**options))  # type: ignore[arg-type]
        running.append(server)
        return server.__enter__()

    try:
        yield run
    finally:
        for server in running:
            server.close()


@pytest.fixture
def sshd(run_sshd: Callable[..., Sshd]) -> Sshd:
    """A plain server."""
    return run_sshd()


@pytest.fixture
def client_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engineer's machine without any ssh files: its HOME, and encamp's folders in it."""
    home = tmp_path / "client"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("ENCAMP_CONFIG_DIR", str(home / "config"))
    monkeypatch.setenv("ENCAMP_STATE_DIR", str(home / "state"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return home

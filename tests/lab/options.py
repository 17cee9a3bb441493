"""What a lab host is like."""

from __future__ import annotations

from dataclasses import dataclass

from ssh.sshd import Options as SshOptions

VAST_BANNER = "Welcome to vast.ai. If authentication fails, try again after a few seconds.\nHave fun!\n"
VAST_BASHRC = (
    "mkdir -p ~/workspace && cd ~/workspace\n"
    'echo "Have fun! (main) is active in $(pwd)"\n'
    'printf "\\033]0;vast\\007" >&2\n'
)


@dataclass(frozen=True)
class Cable:
    """What the way from a host to its switch does to packets. The default does nothing."""

    latency_ms: float = 0
    """Added to a round trip: half of it each way."""
    loss: float = 0
    """The share of packets lost, each way: 0.02 are two of a hundred."""
    rate_mbit: float = 0
    """Megabits a second, each way; 0 is no limit."""

    @property
    def plain(self) -> bool:
        """Whether it leaves packets alone."""
        return self == Cable()


@dataclass(frozen=True)
class HostOptions:
    """The defaults are those of a rented container: root, keys only, 64 MB of /dev/shm."""

    noise: str = ""
    """`vast`: a banner before the login, and a .bashrc that prints and changes the folder."""
    sftp: bool = True
    python: str = ""
    """The version that `python3` is, such as "3.8"; else that of the machine's /usr/bin."""
    shm: str = "64m"
    """The size of /dev/shm, as mount takes it."""
    noexec_home: bool = False
    cpus: float = 0
    """A quota in cores; 0 is none. `nproc` still counts the machine's."""
    pids: int = 0
    """At most so many processes and threads; 0 is any number."""
    memory: str = ""
    """A limit such as "256m"; beyond it processes are killed."""
    nat: str = ""
    """The gateway behind which the host is, by any name: private address, no way in but a mapped SSH port.

    Hosts behind one gateway share its address, and reach each other by their private addresses."""
    overlays: tuple[tuple[str, str], ...] = ()
    """Further interfaces, such as a VPN's: its name on the host and, by any name, the network it leads to."""
    open_ports: tuple[int, int] | None = None
    """Of all ports only SSH's and those from the first to the last are open to others."""
    local_ports: tuple[int, int] | None = None
    """The first and the last port that the kernel chooses for who does not say which."""
    resolves: str = "own"
    """What the host's own name means to itself: its address (`own`), `loopback`, or `nothing`."""
    gpus: int = 0
    """So many, which do nothing; `LabHost.gpus` changes them."""
    clock_offset: float = 0
    """Seconds by which the clock of everything started over SSH is ahead; file times are the kernel's."""
    cable: Cable = Cable()

    def ssh(self, environment: tuple[str, ...] = ()) -> SshOptions:
        """What this means to sshd."""
        return SshOptions(
            banner=VAST_BANNER if self.noise == "vast" else "",
            bashrc=VAST_BASHRC if self.noise == "vast" else "",
            config="Subsystem sftp internal-sftp" if self.sftp else "",
            environment=environment,
        )

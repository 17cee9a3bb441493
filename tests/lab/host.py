"""One host of a lab: started, reached over SSH, cut off its power, started again, replaced."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ssh.sshd import SSHD, keygen, server_config, write_users
from waiting import wait_until

from tui.fleet.hosts import Host

from . import cgroups, clock, gpus
from .cleanup import kill_all_in
from .machine import Machine, interpreter
from .network import Network, firewall, quiet, set_kernel
from .options import Cable, HostOptions
from .tools import run
from .wire import Wire


class LabHost:
    """A machine with an address. It is made by `Lab.add`, which also starts it."""

    def __init__(
        self,
        name: str,
        namespace: str,
        folder: Path,
        network: Network,
        options: HostOptions,
        key: Path,
        refuse: Callable[[str], NoReturn],
    ) -> None:
        self.name = name
        self.options = options
        self.key = key
        self._namespace = namespace
        self._machine = Machine(folder, name, options)
        self._network = network
        self._refuse = refuse
        self._gateway = network.gateway(options.nat) if options.nat else None
        self._segment = self._gateway.inside if self._gateway else network.switch
        self.private_address = self._segment.new_address()
        """The address of its `eth0`."""
        self.address = self._gateway.address if self._gateway else self.private_address
        """Where the controller and the other hosts reach it, or the gateway in front of it."""
        self.ssh_port = self._gateway.map_port(self.private_address) if self._gateway else 22
        self.home = self._machine.home
        """Its /root, as a folder of this machine."""
        self.log = folder / "sshd.log"
        self._port = _port(self.private_address)
        """What the other end of its cable is called."""
        self._overlays = [
            (interface, segment, segment.new_address())
            for interface, name in options.overlays
            for segment in [network.overlay(name)]
        ]
        self.overlay_addresses = {interface: address for interface, _, address in self._overlays}
        """Interface -> address, of the options' overlays."""
        self._wire: Wire | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._python = interpreter(options.python, refuse) if options.python else None
        self.renew()

    @property
    def running(self) -> bool:
        """Whether it has power."""
        return self._process is not None

    @property
    def boot_id(self) -> str:
        """Of the boot it is in."""
        return self._machine.boot_id.read_text().strip()

    def inventory(self, name: str = "", **fields: object) -> Host:
        """This host as one of encamp's inventory, with its key."""
        values: dict[str, object] = {
            "port": self.ssh_port,
            "user": "root",
            "identity_files": (str(self.key),),
            "identities_only": True,
            **fields,
        }
        return Host(name or self.name, self.address, **values)  # type: ignore[arg-type]

    def ssh_command(self, *options: str) -> list[str]:
        """OpenSSH's client, ready to run something here; the first value of an option counts."""
        return [
            "ssh", "-F", "none", *options, "-p", str(self.ssh_port), "-i", str(self.key),
            "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no",
            "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", f"root@{self.address}",
        ]  # fmt: skip

    def run(self, command: str, timeout: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell command over SSH and return how it ended."""
        words = [*self.ssh_command(), command]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout)
        assert not check or done.returncode == 0, f"{self.name}: {command}: {done.stderr or done.stdout}"
        return done

    def inside(self, *words: str, timeout: float = 60) -> str:
        """Run a program on the host without SSH, also while the network is gone, and return its output.

        It is outside of the host's control groups, and its clock is right.
        """
        init = self._init()
        return subprocess.run(
            ["nsenter", "--target", str(init), "--all", "--root", "--wd=/", *words],
            check=True, capture_output=True, text=True, timeout=timeout,
        ).stdout  # fmt: skip

    def processes(self) -> list[int]:
        """The ids that this machine gives the host's processes."""
        return [int(pid) for pid in run("ip", "netns", "pids", self._namespace).split()]

    def reaches(self, address: str, port: int, timeout: float = 1.0) -> bool:
        """Whether a TCP connection from this host is accepted within `timeout` seconds."""
        connect = f"bash -c '< /dev/tcp/{address}/{port}'"
        return self.inside("sh", "-c", f"timeout {timeout} {connect} 2> /dev/null && echo yes || true") != ""

    # --- power ----------------------------------------------------------------------------------------------

    def power_on(self) -> None:
        """Boot: the same home, an empty /run and /dev/shm, a new boot id. Returns when sshd answers."""
        assert SSHD is not None and not self.running, "it is running"
        self._machine.boot_id.write_text(f"{uuid.uuid4()}\n")
        self._machine.boot_id.chmod(0o444)
        groups = cgroups.limit(self._namespace, self.options, self._refuse)
        script = self._machine.script(SSHD, self._python, limited=bool(groups))
        run("ip", "netns", "add", self._namespace)
        quiet(self._namespace)
        router = self._gateway.router if self._gateway else ""
        self._segment.attach(self._port, self._namespace, self.private_address, router=router)
        for interface, segment, address in self._overlays:
            segment.attach(_port(address), self._namespace, address, interface=interface)
        if self.options.local_ports:
            low, high = self.options.local_ports
            set_kernel(self._namespace, f"net.ipv4.ip_local_port_range={low} {high}")
        if self.options.open_ports:
            firewall(self._namespace, self.options.open_ports)
        enter = [
            "ip", "netns", "exec", self._namespace, "unshare", "--mount", "--pid", "--uts", "--ipc",
            *(["--cgroup"] if groups else []), "--fork", "--mount-proc", "--kill-child",
            "sh", "-c", script,
        ]  # fmt: skip
        join = "".join(f"echo $$ > {shlex.quote(str(group))}/cgroup.procs && " for group in groups)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", f"{join}exec {shlex.join(enter)}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._listens, message=f"sshd of {self.name} listens")
        self.set_cable(self.options.cable)

    def power_cut(self) -> None:
        """Take the power away: nothing says goodbye, and everything that ran is gone when this returns."""
        if self._process is None:
            return
        self.unplug()
        self._process.kill()
        self._process.wait()
        self._process = None
        self._remove_wire()
        kill_all_in(self._namespace)
        run("ip", "-netns", self._segment.namespace, "link", "delete", self._port)
        for _, segment, address in self._overlays:
            run("ip", "-netns", segment.namespace, "link", "delete", _port(address))
        run("ip", "netns", "delete", self._namespace)

    def release(self) -> None:
        """Let go of the processes of a host that was removed."""
        if self._wire is not None:
            self._wire.release()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def reboot(self) -> None:
        """Off and on again."""
        self.power_cut()
        self.power_on()

    def replace(self) -> None:
        """Let another machine have this address: another host key, an empty home, another boot."""
        self.power_cut()
        shutil.rmtree(self._machine.folder)
        self.renew()
        self.power_on()

    def renew(self) -> None:
        """Make the files of a machine that was just rented."""
        machine = self._machine
        machine.create()
        self.gpus = gpus.install(machine.etc, self.options.gpus, self._refuse)
        """Its GPUs, if it has some."""
        ssh = self.options.ssh(
            (
                *clock.environment(machine.etc, self.options.clock_offset, self._refuse),
                *gpus.environment(self.gpus),
            )
        )
        authorized = self.home / ".ssh" / "authorized_keys"
        authorized.parent.mkdir()
        shutil.copy(self.key.with_suffix(".pub"), authorized)
        (self.home / ".bashrc").write_text(ssh.bashrc)
        keygen(machine.etc / "host_key")
        etc, keys = Path("/etc/ssh"), Path("/root/.ssh/authorized_keys")
        (machine.etc / "banner").write_text(ssh.banner)
        (machine.etc / "sshd_config").write_text(server_config(ssh, 22, "0.0.0.0", etc, keys))
        write_users(machine.etc, "root", 0, Path("/root"), "/bin/bash")
        meanings = {"own": self.private_address, "loopback": "127.0.1.1", "nothing": ""}
        meaning = meanings[self.options.resolves]
        (machine.etc / "hosts").write_text(
            "127.0.0.1 localhost\n" + (f"{meaning} {self.name}\n" if meaning else "")
        )

    # --- the cable ------------------------------------------------------------------------------------------

    def unplug(self) -> None:
        """Take the cable out: nobody is reached and nobody is told."""
        run("ip", "-netns", self._segment.namespace, "link", "set", self._port, "down")

    def plug_in(self) -> None:
        """Put the cable back."""
        run("ip", "-netns", self._segment.namespace, "link", "set", self._port, "up")

    def set_cable(self, cable: Cable) -> None:
        """Make the cable slow or lossy from now on, or plain again."""
        self._remove_wire()
        if not cable.plain:
            self._wire = Wire(self._segment.namespace, self._port, self._namespace, cable, self._refuse)

    def _remove_wire(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _init(self) -> int:
        """The host's first process, as this machine counts."""
        assert self._process is not None, f"{self.name} has no power"
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def _listens(self) -> bool:
        assert self._process is not None
        text = self.log.read_text(errors="replace")
        assert self._process.poll() is None, f"{self.name} did not start: {text}"
        return "Server listening" in text


def _port(address: str) -> str:
    """What the port of a bridge is called to which the cable of an address leads."""
    return f"p{address.split('.')[-1]}"

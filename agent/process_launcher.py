"""The launcher of processes that torchrun cannot start: the file that stands beside the shim in an attempt.

    python process_launcher.py ROLE --nproc N [OPTION...] -- rank.py script PATH ARGUMENT...

It stands alone: it is copied into the attempt's folder and runs under the ranks' interpreter, with nothing
but the standard library. It starts the processes of this host under the shim, each in a session of its own,
and stays until they have ended. What it says is in launcher.log.

What the processes of a role get besides what the launcher has (a script may rely on it, the trainer does):

every role           RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK (the number of the host). They
                     count all processes, so that each has a log and a row among the ranks.
horovod              N ranks a host. MASTER_ADDR and MASTER_PORT as torchrun gives them, so that a rank can
                     join a process group of torch as well, and HOROVOD_*: `hvd.init()` works as it is.
                     The rendezvous of Horovod is served by the launcher of the first host.
tf-mirrored          One process, with all GPUs: rank 0 of 1.
tf-parameter-server  N workers, a chief and a parameter server, on one host. Rank 0 is the chief, which runs
                     the training and reports on it; ranks 1 to N are the workers, in the order of their task
                     index; the last rank, N + 1, is the parameter server. Each has its TF_CONFIG, with the
                     same cluster {"chief": [...], "worker": [...], "ps": [...]}. On a host with GPUs worker i
                     sees the i-th of them alone and the others none (CUDA_VISIBLE_DEVICES).

Chiefs and ranks lead; workers and parameter servers help: they serve for ever, so they are ended when all
that lead have ended. SIGTERM goes on to those that lead, so that a chief can still save with its workers'
help, and to the helpers after that. When a process fails the others get a moment to say so themselves, then
SIGTERM, then SIGKILL.

Exit status: 0 when all that lead ended with 0, 143 when SIGTERM came before that, else 1. How the others
ended is written in the form of torchrun's summary, which is what `ending` reads.
"""

from __future__ import annotations

import argparse
import errno
import http.client
import http.server
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Dict, List, NamedTuple, Optional, Sequence

LOCAL = "127.0.0.1"

PORTS = range(15000, 32768)
"""Below those that the kernel gives to connections."""

SETTLE_SECONDS = 2.0
"""How long the others have, when one has failed, to notice it and to say so."""

HELPER_SECONDS = 5.0
"""How long helpers may take to end when nobody needs them any more."""

RENDEZVOUS_SECONDS = 120.0
"""How long a host waits for the first one."""

FAREWELL_SECONDS = 10.0
"""How long the first host goes on serving the others when its own ranks have ended."""

MAX_VALUE = 1024 * 1024
"""Bytes of one value of the rendezvous."""

STOPPED = 128 + signal.SIGTERM


class Member(NamedTuple):
    """One process that is to be started. `env` is what it gets on top of what all get."""

    name: str
    """What people call it, such as `worker 1`."""
    env: Dict[str, str]
    leads: bool = True


class Failed(Exception):
    """Nothing can be started; the text says why."""


# --- roles -------------------------------------------------------------------------------------------------


def horovod(options: argparse.Namespace, address: str, port: int, master_port: int) -> List[Member]:
    """The ranks of this host. `address` and `port` are those of the rendezvous."""
    size = options.nproc * options.nodes
    shared = {
        "MASTER_ADDR": options.address,
        "MASTER_PORT": str(master_port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_HOSTNAME": f"node{options.node}",  # only tells hosts apart
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_SIZE": str(options.nproc),
        "HOROVOD_CROSS_SIZE": str(options.nodes),
        "HOROVOD_CROSS_RANK": str(options.node),
    }
    if options.interface:
        shared["HOROVOD_GLOO_IFACE"] = options.interface
    return [
        Member(
            f"rank {rank}",
            {**shared, "HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(local_rank)},
        )
        for local_rank, rank in enumerate(range(options.node * options.nproc, size)[: options.nproc])
    ]


def mirrored() -> List[Member]:
    """One process."""
    return [Member("rank 0", {})]


def parameter_server(workers: int, devices: Sequence[str]) -> List[Member]:
    """The chief, the workers and the parameter server, on ports of this host that are free now."""
    tasks = [("chief", 0), *(("worker", index) for index in range(workers)), ("ps", 0)]
    cluster: Dict[str, List[str]] = {}
    for (kind, _), port in zip(tasks, free_ports(len(tasks))):
        cluster.setdefault(kind, []).append(f"{LOCAL}:{port}")
    members = []
    for kind, index in tasks:
        env = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}
        if devices:
            own = devices[index : index + 1] if kind == "worker" else ()
            env["CUDA_VISIBLE_DEVICES"] = "".join(own)
        members.append(Member(f"{kind} {index}", env, leads=kind == "chief"))
    return members


def free_ports(count: int, address: str = LOCAL) -> List[int]:
    """TCP ports that nobody listens on, all different. Raises Failed."""
    held: List[socket.socket] = []
    try:
        for port in random.sample(PORTS, 1000):
            if len(held) == count:
                break
            sock = socket.socket()
            try:
                sock.bind((address, port))
            except OSError as error:
                sock.close()
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise Failed(f"cannot listen on {address}: {error.strerror}") from None
            else:
                held.append(sock)
        if len(held) < count:
            raise Failed("no port of this host is free")
        return [int(sock.getsockname()[1]) for sock in held]
    finally:
        for sock in held:
            sock.close()


# --- the rendezvous of Horovod -----------------------------------------------------------------------------


class Rendezvous(http.server.ThreadingHTTPServer):
    """Keeps what the ranks tell each other while they connect: values by path, over HTTP."""

    daemon_threads = True

    def __init__(self, address: str, port: int) -> None:
        self.values: Dict[str, bytes] = {}
        self.lock = threading.Lock()
        super().__init__((address, port), RendezvousHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def has(self, paths: Sequence[str]) -> bool:
        """Whether there are values at all of these."""
        with self.lock:
            return all(path in self.values for path in paths)

    def put(self, path: str, value: bytes) -> None:
        """Keep a value."""
        with self.lock:
            self.values[path] = value


class RendezvousHandler(http.server.BaseHTTPRequestHandler):
    """GET, PUT and DELETE of a value, as Horovod asks for them."""

    server: Rendezvous
    timeout = 10.0

    def do_GET(self) -> None:
        """The value, or 404 while there is none."""
        with self.server.lock:
            value = self.server.values.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        """Keep the body as the value."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_VALUE:
            self._answer(413, b"")
            return
        self.server.put(self.path, self.rfile.read(int(length)))
        self._answer(200, b"")

    def do_DELETE(self) -> None:
        """A rank has read all that it needs: nothing to do, others may still be reading."""
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request."""


def fetch(options: argparse.Namespace, method: str, path: str, body: bytes = b"") -> Optional[bytes]:
    """Ask the first host's rendezvous; None when it does not answer, or has no such value."""
    connection = http.client.HTTPConnection(options.address, options.port, timeout=5.0)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        value = answer.read(MAX_VALUE)
        return value if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


# --- signals -----------------------------------------------------------------------------------------------


class Signals:
    """SIGCHLD and the requests to stop, as something to wait for. A rank inherits none of it."""

    def __init__(self) -> None:
        self.told = False
        """Somebody wants us to stop."""
        self._reader, writer = os.pipe()
        for fd in (self._reader, writer):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self._heard)

    def _heard(self, number: int, _frame: object) -> None:
        self.told = self.told or number != signal.SIGCHLD

    def wait(self, seconds: Optional[float]) -> None:
        """Sleep until a signal comes, at most so long."""
        if select.select([self._reader], [], [], seconds)[0]:
            try:
                while os.read(self._reader, 512):
                    pass
            except BlockingIOError:
                pass  # that was all of them


# --- the processes -----------------------------------------------------------------------------------------


class Process:
    """One process that was started."""

    def __init__(self, member: Member, rank: int, local_rank: int, command: List[str], env: Dict[str, str]):
        self.name = member.name
        self.leads = member.leads
        self.rank = rank
        self.local_rank = local_rank
        self._child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
        self.pid = self._child.pid

    @property
    def code(self) -> Optional[int]:
        """Its exit code, negative for a signal; None while it lives."""
        return self._child.poll()

    def send(self, number: int) -> None:
        """Signal it and what it has started in its process group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # it has just ended


class Launcher:
    """All processes of this host, from their start to their end."""

    def __init__(self, signals: Signals, grace: float) -> None:
        self._signals = signals
        self._grace = grace
        self._all: List[Process] = []

    def start(self, options: argparse.Namespace, members: List[Member]) -> None:
        """Start them. Raises OSError."""
        first, here = options.node * len(members), len(members)
        for local_rank, member in enumerate(members):
            numbers = {
                "RANK": first + local_rank,
                "LOCAL_RANK": local_rank,
                "WORLD_SIZE": here * options.nodes,
                "LOCAL_WORLD_SIZE": here,
                "GROUP_RANK": options.node,
            }
            env = {**os.environ, **{name: str(number) for name, number in numbers.items()}, **member.env}
            command = [sys.executable, "-u", *options.program]
            process = Process(member, first + local_rank, local_rank, command, env)
            self._all.append(process)
            task = "" if member.name == f"rank {process.rank}" else f"{member.name}, "
            say(f"rank {process.rank} is {task}process {process.pid}")

    def run(self) -> int:
        """Stay until all have ended; returns the exit status."""
        told = False
        while self._living(leads=True):
            failed = [process for process in self._all if process.code]
            if failed and not told:
                return self._fail()
            if self._signals.told and not told:
                told = True
                self._tell(leads=True)
            self._signals.wait(None)
        leaders = [process for process in self._all if process.leads]
        well = not any(process.code for process in leaders)
        if well and not told:
            self._dismiss()
            return 0
        if not told:
            return self._fail()
        self._end(HELPER_SECONDS)
        self._summary()
        return STOPPED

    def _living(self, leads: bool = False) -> List[Process]:
        return [each for each in self._all if each.code is None and (each.leads or not leads)]

    def _tell(self, leads: bool = False) -> None:
        for process in self._living(leads):
            say(f"Sending process {process.pid} closing signal SIGTERM")
            process.send(signal.SIGTERM)

    def _fail(self) -> int:
        """One has failed: let the others say so, then end them."""
        self._wait_for_all(SETTLE_SECONDS)
        leaders = [process for process in self._all if process.leads]
        if all(process.code == 0 for process in leaders):
            self._dismiss()  # a helper broke off as the last that needed it went
            return 0
        self._end(self._grace)
        self._summary()
        return STOPPED if self._signals.told else 1

    def _wait_for_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._living():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._signals.wait(left)

    def _end(self, grace: float) -> None:
        """End all that live, by force if they take longer than `grace`."""
        self._tell()
        self._wait_for_all(grace)
        while self._living():
            for process in self._living():
                process.send(signal.SIGKILL)
            self._wait_for_all(1.0)

    def _dismiss(self) -> None:
        """End the helpers, and write down that they ended as they should: they cannot do so themselves."""
        helpers = self._living()
        self._end(HELPER_SECONDS)
        for process in helpers:
            folder = os.path.join(os.environ.get("ENCAMP_ATTEMPT_DIR", ""), f"rank{process.rank}")
            path = os.path.join(folder, "exit.json")
            if os.path.isdir(folder) and not os.path.exists(path):
                with open(path + ".part", "w", encoding="ascii") as file:
                    json.dump({"code": 0, "time": time.time()}, file)
                os.rename(path + ".part", path)

    def _summary(self) -> None:
        for process in self._all:
            if process.code:
                numbers = f"rank      : {process.rank} (local_rank: {process.local_rank})"
                say(f"{process.name} did not end well")
                say(f"  {numbers}\n  exitcode  : {process.code} (pid: {process.pid})")


def say(text: str) -> None:
    """Say something in launcher.log."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


# --- the beginning -----------------------------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options in `argv`."""
    parser = argparse.ArgumentParser(prog="process_launcher.py", allow_abbrev=False)
    parser.add_argument("role", choices=("horovod", "tf-mirrored", "tf-parameter-server"))
    parser.add_argument(
        "--nproc", type=int, default=1, help="ranks of this host; of them workers are counted"
    )
    parser.add_argument("--nodes", type=int, default=1, help="hosts")
    parser.add_argument("--node", type=int, default=0, help="the number of this one, from 0 on")
    parser.add_argument("--address", default=LOCAL, help="of the first host")
    parser.add_argument("--port", type=int, default=0, help="of the rendezvous; 0: any, on one host")
    parser.add_argument("--interface", default="", help="by which the hosts reach each other")
    parser.add_argument("--devices", default="", help="GPUs of the workers, as in CUDA_VISIBLE_DEVICES")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds between SIGTERM and SIGKILL")
    at = list(argv).index("--") if "--" in argv else len(argv)
    options = parser.parse_args(argv[:at])
    options.program = list(argv[at + 1 :])
    return options


def main(argv: Sequence[str]) -> int:
    """Start what `argv` says and stay until it has ended."""
    options = parse(argv)
    signals = Signals()
    launcher = Launcher(signals, options.grace)
    try:
        if options.role == "tf-mirrored":
            launcher.start(options, mirrored())
        elif options.role == "tf-parameter-server":
            devices = [word for word in options.devices.split(",") if word]
            launcher.start(options, parameter_server(options.nproc, devices))
        else:
            return run_horovod(options, signals, launcher)
        return launcher.run()
    except (Failed, OSError) as error:
        say(f"encamp: nothing was started: {error}")
        return STOPPED if signals.told else 1


def run_horovod(options: argparse.Namespace, signals: Signals, launcher: Launcher) -> int:
    """Ranks that meet at the first host's rendezvous. Raises Failed, OSError."""
    alone = options.nodes == 1
    if options.node == 0:
        server = Rendezvous(LOCAL if alone else "", options.port)
        master = free_ports(1, LOCAL if alone else "")[0]
        server.put("/encamp/master", str(master).encode())
        launcher.start(options, horovod(options, LOCAL, server.port, master))
        code = launcher.run()
        others = [f"/encamp/done{node}" for node in range(1, options.nodes)]
        deadline = time.monotonic() + FAREWELL_SECONDS
        while code == 0 and not server.has(others) and not signals.told and time.monotonic() < deadline:
            signals.wait(0.1)
        return code
    launcher.start(options, horovod(options, options.address, options.port, find_master(options, signals)))
    code = launcher.run()
    fetch(options, "PUT", f"/encamp/done{options.node}", b"1")
    return code


def find_master(options: argparse.Namespace, signals: Signals) -> int:
    """The port of torch's rendezvous, which the first host has chosen. Raises Failed."""
    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    while not signals.told and time.monotonic() < deadline:
        said = fetch(options, "GET", "/encamp/master")
        if said is not None and said.isdigit():
            return int(said)
        signals.wait(0.2)
    where = f"{options.address}:{options.port}"
    raise Failed("told to stop" if signals.told else f"the first host does not answer at {where}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

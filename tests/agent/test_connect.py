"""The relay: start, race, hand-over, hang-ups and half-closes, each with the real daemon."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from agent_client import NONCE, AgentHost, agent_bundle, gone, kill, packed_sources
from waiting import wait_until

from agent import connect, instance, process, wire


def test_the_first_connection_starts_the_daemon_and_the_next_finds_it(one_host: AgentHost) -> None:
    first = one_host.connect()
    kinds = [type(message) for message in first.seen]
    assert kinds[:2] == [wire.Hello, wire.Sample]
    assert kinds[-1] is wire.Ready
    assert first.hello.build == agent_bundle().sha256
    assert first.hello.home == one_host.home
    second = one_host.connect()
    assert second.hello.pid == first.hello.pid
    assert second.hello.host_id == first.hello.host_id
    assert first.request("ping")["time"] > 1e9


def test_the_home_is_made_private(one_host: AgentHost) -> None:
    Path(one_host.home).chmod(0o755)
    one_host.connect()
    assert Path(one_host.home).stat().st_mode & 0o777 == 0o700
    assert Path(one_host.home, instance.SOCKET).stat().st_mode & 0o777 == 0o600


def test_relays_that_race_get_one_daemon(one_host: AgentHost) -> None:
    relays = [one_host.relay() for _ in range(5)]
    pids = set()
    for relay in relays:
        assert relay.line() == NONCE.encode() + b"\n"
        relay.expect(wire.Ready)
        pids.add(relay.hello.pid)
    assert len(pids) == 1
    assert one_host.log().count("is ready") == 1
    assert "running already" not in one_host.log()


def test_a_path_too_long_for_a_unix_socket(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30) / ("longer" * 20)
    one_host = AgentHost(str(home))
    try:
        assert one_host.connect().hello.home == str(home)
    finally:
        one_host.close()


def test_a_stale_socket_and_a_stale_lock(one_host: AgentHost) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(f"{one_host.home}/{instance.SOCKET}")
    stale.close()
    Path(one_host.home, instance.LOCK).write_text("12345 1 no-boot 0 9.9.9 9\n")
    assert one_host.connect().request("ping")


def test_a_killed_daemon_is_replaced_on_the_next_connect(one_host: AgentHost) -> None:
    first = one_host.connect()
    os.kill(first.hello.pid, signal.SIGKILL)
    assert first.wait() == connect.EXIT_ENDED
    again = one_host.connect("--keep")
    assert again.hello.pid != first.hello.pid
    assert again.hello.host_id == first.hello.host_id


def test_a_daemon_that_hangs_is_replaced(one_host: AgentHost) -> None:
    pid = one_host.connect().hello.pid
    os.kill(pid, signal.SIGSTOP)
    relay = _relay_in_process(one_host, "import agent.connect as c; c.HELLO_SECONDS = 0.3")
    try:
        assert relay.returncode is None
        wait_until(lambda: gone(pid), 10, "the hanging daemon is removed")
    finally:
        kill(pid)
        relay.kill()
        relay.communicate()
    assert one_host.connect().hello.pid != pid


def test_another_build_takes_over_and_keep_leaves_it_alone(one_host: AgentHost) -> None:
    old = one_host.connect()
    data = agent_bundle().data + b"\0"  # a zip file may be followed by anything: the same code, another build
    other = one_host.install(data, "f" * 64)
    kept = one_host.connect("--keep", pyz=other)
    assert kept.hello.pid == old.hello.pid
    new = one_host.connect(pyz=other)
    assert new.hello.build == "f" * 64
    assert new.hello.pid != old.hello.pid
    assert old.wait() == kept.wait() == connect.EXIT_ENDED
    assert one_host.connect("--keep").hello.pid == new.hello.pid, "a reconnect does not throw it out"
    wait_until(lambda: gone(old.hello.pid), 5, "the old daemon is gone")


@pytest.mark.parametrize(
    ("build", "release", "major", "keep", "expected"),
    [
        ("ours", "0.1.0", 1, False, True),
        ("theirs", "0.1.0", 1, False, False),
        ("theirs", "0.0.9", 1, False, False),
        ("theirs", "0.1.1", 1, False, True),
        ("theirs", "0.10", 2, False, True),
        ("theirs", "0.1.0", 1, True, True),
        ("theirs", "0.1.0", 2, True, False),
        ("theirs", "0.2.0", 2, True, True),
    ],
)
def test_who_makes_room_for_whom(
    monkeypatch: pytest.MonkeyPatch, build: str, release: str, major: int, keep: bool, expected: bool
) -> None:
    monkeypatch.setattr(instance, "build_id", lambda: "ours")
    monkeypatch.setattr(connect.version, "VERSION", "0.1.0")
    assert connect.acceptable(instance.Holder(1, 1, "", build, release, major), keep) is expected


def test_the_protocol_of_relay_and_wire_is_one() -> None:
    assert wire.PROTOCOL[0] == instance.PROTOCOL_MAJOR
    assert wire.decode(connect.RETIRE) == wire.Request(0, "retire", {})


def test_answers_still_arrive_after_our_end_of_input(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    number = viewer.ask("ping")
    start = time.monotonic()
    viewer.end_input()
    assert viewer.answer(number)
    while viewer.line():
        pass
    assert viewer.wait() == 0
    assert time.monotonic() - start < connect.LINGER_SECONDS / 2, "the daemon was told, and hung up"


def test_the_relay_goes_when_nobody_reads_any_more(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    assert viewer.relay.stdout is not None
    viewer.relay.stdout.close()
    assert viewer.wait(5) == 0


def test_the_daemon_survives_what_started_it(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    pid = viewer.hello.pid
    viewer.close()
    assert process.alive(pid, process.start_time(pid) or 0)
    status = Path(f"/proc/{pid}/status").read_text()
    assert os.getsid(pid) == os.getpgid(pid) != os.getsid(0)
    assert f"PPid:\t{viewer.relay.pid}" not in status
    targets = {fd.name: str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    assert targets["0"] == "/dev/null"
    assert targets["1"] == targets["2"] == f"{one_host.home}/agent.log"
    assert not [target for target in targets.values() if target.startswith("pipe:")]


def test_the_daemon_survives_a_relay_that_is_killed_while_it_starts(one_host: AgentHost) -> None:
    Path(one_host.home).mkdir(0o700, exist_ok=True)
    ready, report = os.pipe()
    os.close(ready)
    daemon = subprocess.Popen(
        one_host.command("daemon", "--ready", str(report)),
        env=one_host.environment(),
        cwd=one_host.home,
        pass_fds=(report,),
    )
    try:
        os.close(report)
        wait_until(lambda: Path(one_host.home, instance.SOCKET).exists(), message="it does not listen")
        assert one_host.connect().hello.pid == daemon.pid
    finally:
        daemon.kill()
        daemon.wait()


def test_a_daemon_that_is_killed_while_it_starts_is_followed_by_another(one_host: AgentHost) -> None:
    relay = _relay_in_process(
        one_host,
        "from agent import connect as c, instance; import os\n"
        "become = instance._become_daemon\n"
        "def fall(lock, report):\n"
        "    os.path.exists('fell') and become(lock, report)\n"
        "    open('fell', 'w').close()\n"
        "    os.kill(os.getpid(), 9)\n"
        "instance._become_daemon = fall\n",
    )
    try:
        assert relay.stdout is not None
        assert relay.stdout.readline() == b"aa\n"
        assert b'"hello"' in relay.stdout.readline()
        one_host.connect()  # it is ended with the others
    finally:
        kill(relay.pid)
        relay.wait()


def test_the_marks_of_an_attempt_do_not_reach_the_daemon(
    one_host: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_RUN", "outer")
    monkeypatch.setenv("ENCAMP_ATTEMPT", "1")
    pid = one_host.connect().hello.pid
    names = {entry.partition(b"=")[0] for entry in process.environ(pid)}
    assert b"ENCAMP_HOME" in names
    assert not names & {b"ENCAMP_RUN", b"ENCAMP_ATTEMPT"}


class TestRefusals:
    """Each is the nonce, one sentence on standard error, and a code of its own."""

    def test_a_home_that_is_a_file(self, one_host: AgentHost, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        self.refused(one_host, str(tmp_path / "file"), connect.EXIT_HOME, "cannot use")

    def test_a_home_that_cannot_be_made(self, one_host: AgentHost) -> None:
        self.refused(one_host, "/proc/encamp", connect.EXIT_HOME, "cannot use /proc/encamp")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
    def test_a_home_of_somebody_else(self, one_host: AgentHost, tmp_path: Path) -> None:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, 12345, 12345)
        self.refused(one_host, str(theirs), connect.EXIT_HOME, "belongs to user 12345")

    def test_a_daemon_that_does_not_start(self, one_host: AgentHost) -> None:
        Path(one_host.home, "host.json").mkdir()
        self.refused(one_host, one_host.home, connect.EXIT_START, "daemon ended at once: IsADirectoryError")

    def test_a_daemon_that_falls_over_on_every_connection(self, one_host: AgentHost) -> None:
        sources = {"__main__.py": "import sys; from agent.__main__ import main; sys.exit(main(sys.argv[1:]))"}
        with zipfile.ZipFile(io.BytesIO(agent_bundle().data)) as archive:
            sources.update({name: archive.read(name).decode() for name in archive.namelist()})
            packed = packed_sources(archive)
            sources.update({f"agent/{name}": source.decode() for name, source in packed.items()})
        sources["agent/viewer.py"] += """
import os
Viewer.connection_made = lambda *_: print("oh", flush=True) or os._exit(7)
"""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, text in sources.items():
                archive.writestr(name, text)
        relay = one_host.relay(pyz=one_host.install(buffer.getvalue(), "d" * 64))
        assert relay.wait() == connect.EXIT_START
        assert "keeps ending: oh (see " in relay.complaint()
        assert one_host.log().count("is ready") == connect.MAX_STARTS

    def test_a_lock_held_by_a_stranger(self, one_host: AgentHost) -> None:
        code = (
            "import sys, agent.instance as i, agent.connect as c\n"
            "i.START_SECONDS = 0.3\n"
            "i.enter_home(sys.argv[1])\n"
            "lock = i.take_lock()\n"
            "import os; pid = os.fork()\n"
            "if pid == 0: os.close(lock); os._exit(c.main(['--nonce', 'aa']))\n"
            "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, one_host.home],
            capture_output=True,
            check=False,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert done.returncode == connect.EXIT_SILENT
        assert "another process holds" in done.stderr
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize("arguments", [(), ("--nonce",), ("--nonce", "xyz"), ("--nonce", "aa", "--loud")])
    def test_wrong_usage(self, one_host: AgentHost, arguments: tuple[str, ...]) -> None:
        done = subprocess.run(
            one_host.command("connect", *arguments), capture_output=True, check=False, text=True
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("encamp: connect ")

    @staticmethod
    def refused(one_host: AgentHost, home: str, code: int, words: str) -> None:
        one_host.home, before = home, one_host.home
        try:
            relay = one_host.relay()
        finally:
            one_host.home = before
        assert relay.line() == NONCE.encode() + b"\n"
        assert relay.line() == b""
        assert relay.wait() == code
        complaint = relay.complaint()
        assert complaint.startswith("encamp: ")
        assert words in complaint
        assert complaint.count("\n") == 1, complaint


def _relay_in_process(one_host: AgentHost, prepare: str) -> subprocess.Popen[bytes]:
    """A relay with other constants."""
    code = f"import sys; sys.path.insert(0, {one_host.pyz!r}); {prepare}\nsys.exit(c.main(['--nonce', 'aa']))"
    return subprocess.Popen(
        [one_host.python, "-I", "-S", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=one_host.environment(),
    )

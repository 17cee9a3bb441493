"""`encamp forward` as a user has it."""

from __future__ import annotations

import json
import signal
import socket

import pytest
from e2e.camp import Camp
from ssh.sshd import Sshd

pytestmark = pytest.mark.sshd


def test_it_says_what_is_open_and_ends_quietly(camp: Camp, box: Sshd) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as program,
        camp.start("forward", "box", f"0:{program.getsockname()[1]}", "--json") as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            lines = b""
            while not lines.endswith(b"\n}\n"):
                line = process.stdout.readline()
                assert line, process.stderr.read()
                lines += line
            shown = json.loads(lines)
            assert shown["host"] == "box"
            (opened,) = shown["forwards"]
            assert opened["address"] == "127.0.0.1"
            assert opened["remote_port"] == program.getsockname()[1]
            with socket.create_connection(("127.0.0.1", opened["local_port"]), timeout=10) as here:
                there, _ = program.accept()
                with there:
                    here.sendall(b"hello")
                    assert there.recv(100) == b"hello"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=10)
        finally:
            process.kill()
    assert process.returncode == 130
    assert out == b"", "one object and nothing else"
    assert err.count(b"\n") == 1, f"no more than the note that another port was taken: {err!r}"


@pytest.mark.parametrize("port", ["0", "65536", "a", "1:2:3", "localhost:80", "80:", "-1", "٣"])
def test_what_is_no_port(camp: Camp, port: str) -> None:
    with camp.start("forward", "box", port) as process:
        _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert err.startswith(b"encamp: ")

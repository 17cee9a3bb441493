"""NCCL's status server is asked as its own client does it, and whatever listens there cannot do harm."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from agent.signals import ras

Talk = Callable[[socket.socket], None]


def line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        piece = connection.recv(1)
        if not piece:
            break
        data += piece
    return data


def nccl(connection: socket.socket) -> None:
    """As NCCL answers, in pieces."""
    assert line(connection) == b"CLIENT PROTOCOL 2\n"
    connection.sendall(b"SERVER PROTOCOL ")
    connection.sendall(b"3\n")
    assert line(connection).startswith(b"TIMEOUT ")
    connection.sendall(b"OK\n")
    assert line(connection) == b"VERBOSE STATUS\n"
    connection.sendall(b"Job summary\n\x1b[2J====")
    connection.sendall(b"\nErrors\n")


def flood(connection: socket.socket) -> None:
    line(connection)
    connection.sendall(b"SERVER PROTOCOL 2\n")
    line(connection)
    connection.sendall(b"OK\n")
    line(connection)
    try:
        while True:
            connection.sendall(b"x" * 65536)
    except OSError:
        pass


def slow(connection: socket.socket) -> None:
    """Says the first lines and never comes to an end."""
    line(connection)
    connection.sendall(b"SERVER PROTOCOL 2\n")
    line(connection)
    connection.sendall(b"OK\n")
    line(connection)
    connection.sendall(b"Job summary\n")
    line(connection)


@pytest.fixture
def serve() -> Iterator[Callable[[Talk], int]]:
    servers: list[socket.socket] = []

    def run(server: socket.socket, talk: Talk) -> None:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            talk(connection)

    def serve(talk: Talk) -> int:
        servers.append(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=run, args=(servers[-1], talk), daemon=True).start()
        return int(servers[-1].getsockname()[1])

    yield serve
    for server in servers:
        server.close()


def ask(port: int, seconds: float = 10.0) -> str:
    return ras.ask("127.0.0.1", port, time.monotonic() + seconds)


def test_the_status_is_taken_as_text(serve: Callable[[Talk], int]) -> None:
    assert ask(serve(nccl)) == "Job summary\n[2J====\nErrors"


def test_a_flood_is_cut_off(serve: Callable[[Talk], int]) -> None:
    assert len(ask(serve(flood))) == ras.MAX_KEPT


def test_what_came_in_time_is_kept(serve: Callable[[Talk], int]) -> None:
    began = time.monotonic()
    assert ask(serve(slow), 1.0) == "Job summary"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 4096, b"SERVER PROTOCOL 2\nNO\n"]
)
def test_who_else_listens_there_is_not_believed(serve: Callable[[Talk], int], said: bytes) -> None:
    def talk(connection: socket.socket) -> None:
        line(connection)
        connection.sendall(said)

    assert ask(serve(talk)) == ""


def test_silence_and_nobody_there(serve: Callable[[Talk], int]) -> None:
    assert ask(serve(lambda connection: (line(connection), line(connection))[0] and None), 0.3) == ""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert ask(port) == ""


def test_addresses() -> None:
    assert ras.parse_address("localhost:28028") == ("localhost", 28028)
    assert ras.parse_address("[::1]:7") == ("::1", 7)
    assert ras.parse_address("10.0.0.5:7") == ("10.0.0.5", 7)
    for strange in ("", "host.example:7", "localhost", "localhost:0", "localhost:99999", ":7", "a:b"):
        assert ras.parse_address(strange) is None


def test_the_rank_says_where_its_nccl_listens(serve: Callable[[Talk], int]) -> None:
    port = serve(nccl)
    code = "import sys; print(flush=True); sys.stdin.read()"
    rank = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "NCCL_RAS_ADDR": f"localhost:{port}"},
    )
    with rank:
        try:
            assert rank.stdout is not None and rank.stdout.readline()
            assert ras.addresses([rank.pid, rank.pid, None]) == [("localhost", port)]
            assert ras.status([rank.pid]).startswith("Job summary")
        finally:
            rank.kill()
    assert ras.status([]) == ""

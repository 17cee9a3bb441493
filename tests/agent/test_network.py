"""Measuring a network on the host: interfaces, listeners that serve nobody uninvited, reaching others."""

from __future__ import annotations

import itertools
import json
import secrets
import socket
import subprocess
import time
from typing import Any

import pytest
from agent_client import AgentHost, Connection, Refused
from waiting import wait_until

from agent import network, wire

LOOPBACK = "127.0.0.1"


def listen(
    viewer: Connection, address: str = LOOPBACK, port: int = 0, seconds: float = 20.0
) -> dict[str, Any]:
    """Start a listener and return it as a peer."""
    token = secrets.token_hex(16)
    answer = viewer.request("listen", token=token, address=address, port=port, seconds=seconds)
    return {"name": "peer", "address": address, "port": answer["port"], "token": token}


def probe(viewer: Connection, *peers: dict[str, Any], seconds: float = 0.0) -> list[dict[str, Any]]:
    """What came of trying them all."""
    answer = viewer.request("probe_peers", peers=list(peers), throughput_seconds=seconds)
    found: list[dict[str, Any]] = answer["peers"]
    return found


def refusal(viewer: Connection, method: str, **params: Any) -> str:
    """The code with which a request is refused."""
    with pytest.raises(Refused) as caught:
        viewer.request(method, **params)
    return str(caught.value.code)


def test_the_addresses_are_those_that_iproute2_shows(python: str) -> None:
    shown = subprocess.run(["ip", "-json", "address"], capture_output=True, check=False, text=True)
    if shown.returncode != 0:
        pytest.skip("there is no ip here")
    expected = {
        (link["ifname"], entry["local"], entry["prefixlen"], link["mtu"])
        for link in json.loads(shown.stdout)
        for entry in link.get("addr_info", [])
        if "LOOPBACK" not in link["flags"] and entry["family"] in ("inet", "inet6")
    }
    code = (
        "import json, sys\nsys.path.insert(0, '.')\n"
        "from agent import network\nprint(json.dumps(network.describe()))\n"
    )
    said = subprocess.run([python, "-S", "-c", code], capture_output=True, check=True, text=True).stdout
    found = json.loads(said)
    got = {(each["name"], each["address"], each["prefix"], each["mtu"]) for each in found["interfaces"]}
    assert got == expected
    low, high = found["local_ports"]
    assert 0 < low < high < 65536
    routes = json.loads(subprocess.check_output(["ip", "-4", "-json", "route", "show", "default"], text=True))
    assert found["default_interface"] == (routes[0]["dev"] if routes else None)


def test_who_knows_the_token_is_served_and_measured(host: AgentHost) -> None:
    viewer = host.connect()
    found = probe(viewer, listen(viewer), seconds=0.3)[0]
    assert found["ok"], found
    assert found["error"] == ""
    assert 0 < found["rtt_ms"] < 1000
    assert found["mbit"] > 100


def test_who_does_not_know_it_gets_no_byte(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    peer = listen(viewer)
    with socket.create_connection((LOOPBACK, peer["port"]), 10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        stranger.settimeout(10)
        with pytest.raises((ConnectionResetError, EOFError)):
            if stranger.recv(1) == b"":
                raise EOFError
    wrong = probe(viewer, {**peer, "token": "0" * 32})[0]
    assert not wrong["ok"]
    assert wrong["error"]
    assert probe(viewer, peer)[0]["ok"], "strangers do not end the listener"


def test_another_program_at_the_address_is_not_taken_for_the_listener(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    with socket.create_server((LOOPBACK, 0)) as server:
        number = viewer.ask(
            "probe_peers",
            peers=[{"name": "p", "address": LOOPBACK, "port": server.getsockname()[1], "token": "0" * 32}],
        )
        connection, _ = server.accept()
        with connection:
            connection.sendall(connection.recv(32))  # an echo server
            found = viewer.answer(number)["peers"][0]
    assert (found["ok"], found["error"]) == (False, "something else answers there")


def test_all_peers_are_tried_at_once(one_host: AgentHost) -> None:
    """Whatever does not answer costs one waiting time, and the answers come in the order of the peers."""
    viewer = one_host.connect()
    peer = listen(viewer)
    with socket.socket() as closed, socket.socket() as full:
        closed.bind((LOOPBACK, 0))
        full.bind((LOOPBACK, 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)):  # its queue has no place for another one
            silent = {"name": "silent", "address": LOOPBACK, "port": port, "token": "0" * 32}
            refusing = {**silent, "name": "refusing", "port": closed.getsockname()[1]}
            start = time.monotonic()
            found = probe(viewer, *[silent] * 40, refusing, peer)
            took = time.monotonic() - start
    assert [each["name"] for each in found] == [*["silent"] * 40, "refusing", "peer"]
    assert {each["error"] for each in found[:40]} == {"connection timed out"}
    assert found[40]["error"] == "connection refused"
    assert found[41]["ok"]
    assert network.CONNECT_SECONDS * 0.9 < took < network.CONNECT_SECONDS * 2.5


def test_the_ports_of_listeners_that_were_ended_are_free_at_once(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    peer = listen(viewer)
    assert probe(viewer, peer, seconds=0.05)[0]["ok"]
    assert refusal(viewer, "listen", token="1" * 32, address=LOOPBACK, port=peer["port"], seconds=5) == "io"
    viewer.request("unlisten", tokens=[peer["token"], "unknown"])
    with socket.socket() as other:
        other.bind((LOOPBACK, peer["port"]))  # without SO_REUSEADDR
        other.listen()


def test_a_listener_ends_by_itself(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    peer = listen(viewer, seconds=0.2)
    wait_until(lambda: probe(viewer, peer)[0]["error"] == "connection refused")


def test_what_makes_no_sense_is_refused(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    good: dict[str, Any] = {"token": "a" * 32, "address": LOOPBACK, "seconds": 5.0}
    for bad in ({"token": "short"}, {"address": "0.0.0.0"}, {"address": "::"}, {"address": "host.example"},
                {"port": 65536}, {"port": -1}, {"token": "é" * 32}):  # fmt: skip
        assert refusal(viewer, "listen", **{**good, **bad}) == "bad-request"
    peer = {"name": "p", "address": LOOPBACK, "port": 0, "token": "a" * 32}
    assert refusal(viewer, "probe_peers", peers=[peer]) == "bad-request"
    assert refusal(viewer, "probe_peers", peers=[{**peer, "port": 1}] * 513) == "bad-request"
    assert refusal(viewer, "listen", **{**good, "address": "192.0.2.77"}) == "io", "not an address of ours"
    for number in range(network.MAX_LISTENERS):
        viewer.request("listen", **{**good, "token": f"{number:032}"})
    assert refusal(viewer, "listen", **good) == "busy"


def test_telemetry_comes_while_all_is_being_measured(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    peers = [listen(viewer) for _ in range(4)]
    before = len(viewer.seen)
    found = probe(viewer, *peers, seconds=4.0)
    assert all(each["mbit"] for each in found)
    times = [message.monotonic for message in viewer.seen[before:] if isinstance(message, wire.Sample)]
    assert len(times) >= 3, "about one a second"
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) < 1.8

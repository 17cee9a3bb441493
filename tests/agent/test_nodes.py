"""A run on several hosts as each of them is told: torchrun's options, interfaces, and what is refused."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from agent import launch, nodes, paths, ports, probe, wire
from agent.errors import RunError

NODES = tuple(
    wire.Node(name, letter * 32, f"10.0.0.{number}", f"eth{number}")
    for number, (name, letter) in enumerate((("lead", "a"), ("box", "b"), ("third", "c")), 1)
)


def placement(node_rank: int, **changes: object) -> wire.Placement:
    base = wire.Placement(NODES, node_rank, "10.0.0.1", ports.free_port(), "gpt-1-2-x7")
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> wire.LaunchSpec:
    torch = probe.Interpreter("/venv/bin/python", "3.11.7", "2.13.0+cu130", "13.0")
    monkeypatch.setattr(probe, "resolve", lambda *_: torch)
    (tmp_path / "train.py").touch()
    return wire.LaunchSpec(
        "gpt-1", "gpt", "p", "ddp", "script", "train.py", cwd=str(tmp_path), nproc_per_node=4
    )


def test_torchrun_keeps_to_our_node_ranks(home: str, spec: wire.LaunchSpec) -> None:
    place = placement(2)
    command = launch.resolve(home, spec, 2, place, cores=8)
    attempt = paths.attempt_dir(home, "gpt-1", 2)
    assert command.argv == (
        "/venv/bin/python", "-m", "torch.distributed.run",
        "--nnodes", "3", "--nproc-per-node", "4", "--max-restarts", "0",
        "--node-rank", "2", "--rdzv-backend", "static",
        "--rdzv-endpoint", f"10.0.0.1:{place.rendezvous_port}", "--rdzv-id", "gpt-1-2-x7",
        "--rdzv-conf", f"timeout={nodes.RENDEZVOUS_SECONDS}", "--local-addr", "10.0.0.3",
        "--log-dir", f"{attempt}/torchrun", f"{attempt}/rank.py", "script", "train.py",
    )  # fmt: skip
    assert (command.nproc_per_node, command.world_size) == (4, 12)
    assert (command.port, command.torch, command.cuda) == (place.rendezvous_port, "2.13.0+cu130", "13.0")


def test_each_host_has_its_own_interface_unless_the_user_says_which(home: str, spec: wire.LaunchSpec) -> None:
    env = launch.resolve(home, spec, 1, placement(1), cores=8).env
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("eth2", "=eth2")
    theirs = dataclasses.replace(spec, env={"NCCL_SOCKET_IFNAME": "ib0"})
    env = launch.resolve(home, theirs, 1, placement(1), cores=8).env
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("eth2", "ib0")
    unnamed = tuple(dataclasses.replace(node, interface="") for node in NODES)
    env = launch.resolve(home, spec, 1, placement(1, nodes=unnamed), cores=8).env
    assert not {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} & set(env)


def test_an_ipv6_address_is_put_into_brackets() -> None:
    place = placement(1, rendezvous_address="fd00::1")
    assert f"[fd00::1]:{place.rendezvous_port}" in nodes.torchrun_argv(place)


def test_one_host_that_is_left_runs_as_one_host_does(home: str, spec: wire.LaunchSpec) -> None:
    command = launch.resolve(home, spec, 2, placement(0, nodes=NODES[:1]), cores=8)
    assert "c10d" in command.argv
    assert "127.0.0.1" in command.argv
    assert command.world_size == 4
    assert "GLOO_SOCKET_IFNAME" not in command.env


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": ()}, "0 hosts"),
        ({"nodes": NODES * 2000}, "6000 hosts"),
        ({"node_rank": 3}, "node rank 3"),
        ({"node_rank": -1}, "node rank -1"),
        ({"rendezvous_port": 0}, "port 0"),
        ({"rendezvous_port": 70_000}, "port 70000"),
        ({"rendezvous_id": "--x"}, "'--x'"),
        ({"rendezvous_address": "-h"}, "'-h'"),
        ({"rendezvous_address": ""}, "address"),
        ({"nodes": (NODES[0], dataclasses.replace(NODES[1], address="a b"))}, "'a b'"),
        ({"nodes": (NODES[0], dataclasses.replace(NODES[1], interface="^lo"))}, "'^lo'"),
    ],
)
def test_a_placement_that_cannot_be(changes: dict[str, object], said: str) -> None:
    with pytest.raises(RunError) as refusal:
        nodes.check(dataclasses.replace(placement(1), **changes), 4)  # type: ignore[arg-type]
    assert refusal.value.code == "bad-spec"
    assert said in refusal.value.message


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_rendezvous_host_s_port_must_be_free_there_alone(
    family: socket.AddressFamily, address: str
) -> None:
    with socket.socket(family) as taken:
        try:
            taken.bind((address, 0))
        except OSError as error:
            pytest.skip(f"no {address} here: {error}")
        taken.listen()
        port = taken.getsockname()[1]
        nodes.check(placement(1, rendezvous_port=port), 4)
        with pytest.raises(RunError) as refusal:
            nodes.check(placement(0, rendezvous_port=port), 4)
    assert refusal.value.code == "port-in-use"


def test_a_port_whose_last_connection_lingers_is_free() -> None:
    """A fixed port of the profile is used again by the next attempt, at once."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first lingers
            assert client.recv(1) == b""
    nodes.check(placement(0, rendezvous_port=port), 4)

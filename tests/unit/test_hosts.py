"""The inventory: what people write in hosts.toml stays, and what encamp writes is never lost."""

from __future__ import annotations

import dataclasses
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tui.fleet.errors import UsageError
from tui.fleet.hosts import Host, Inventory, default_name, parse_ssh_command

BY_HAND = """\
# my machines
[hosts.vast]  # the cheap one
hostname = "203.0.113.7"   # moved twice
port = 20544
colour = "red"

[notes]
text = "mine"

# behind the bastion
[hosts."node.7"]
hostname = "node7"
proxy_jump = "me@bastion:2222"
identity_files = ["~/.ssh/id_a", "~/.ssh/id_b"]
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    return Inventory(tmp_path / "config" / "hosts.toml")


@pytest.fixture
def by_hand(inventory: Inventory) -> Inventory:
    inventory.path.parent.mkdir()
    inventory.path.write_text(BY_HAND)
    return inventory


def test_no_file_is_no_hosts(inventory: Inventory) -> None:
    assert inventory.load() == []


def test_every_field_is_read_back(inventory: Inventory) -> None:
    host = Host(
        "a.b-c", "h", 22, "root", ("~/k 1", "/k2"), True, "j1,u@j2:22", "~/camp", "/opt/conda/bin/python3",
        "wg0", "10.8.0.2", (20000, 20100),
    )  # fmt: skip
    assert inventory.add(host) == host
    assert inventory.load() == [host]
    assert inventory.get("a.b-c") == host
    plain = inventory.add(Host("plain", "2001:db8::1"))
    assert inventory.load() == [host, plain]
    assert stat.S_IMODE(inventory.path.stat().st_mode) == 0o600
    assert {path.name for path in inventory.path.parent.iterdir()} == {"hosts.toml", "hosts.toml.lock"}


def test_the_network_of_a_host_as_people_write_it(inventory: Inventory) -> None:
    inventory.path.parent.mkdir()
    inventory.path.write_text(
        '[hosts.a]\nhostname = "h"\ninterface = "bond0.12"\naddress = "2001:DB8::5"\nports = "29500"\n'
    )
    expected = Host("a", "h", interface="bond0.12", peer_address="2001:db8::5", ports=(29500, 29500))
    assert inventory.load() == [expected]
    inventory.add(dataclasses.replace(expected, name="b", ports=(1, 65535)))
    assert inventory.path.read_text().splitlines()[-3:] == [
        'interface = "bond0.12"', 'address = "2001:db8::5"', 'ports = "1-65535"',
    ]  # fmt: skip


def test_hand_written_file(by_hand: Inventory) -> None:
    assert by_hand.load() == [
        Host("vast", "203.0.113.7", 20544),
        Host("node.7", "node7", identity_files=("~/.ssh/id_a", "~/.ssh/id_b"), proxy_jump="me@bastion:2222"),
    ]


def lines(inventory: Inventory) -> list[str]:
    return [line for line in inventory.path.read_text().splitlines() if line]


def test_changes_keep_comments_and_unknown_keys(by_hand: Inventory) -> None:
    before = lines(by_hand)
    by_hand.add(Host("new", "192.0.2.1"))
    assert [
        line for line in lines(by_hand) if line not in ("[hosts.new]", 'hostname = "192.0.2.1"')
    ] == before
    by_hand.rename("vast", "cheap")
    assert {line.replace("[hosts.cheap]", "[hosts.vast]") for line in lines(by_hand)} >= set(before)
    by_hand.rename("cheap", "vast.2")
    assert by_hand.get("vast.2").port == 20544
    assert by_hand.rename("vast.2", "vast") == Host("vast", "203.0.113.7", 20544)
    assert [host.name for host in by_hand.load()] == ["vast", "new", "node.7"]
    assert by_hand.remove("new").hostname == "192.0.2.1"
    assert sorted(lines(by_hand)) == sorted(before)
    by_hand.remove("vast")
    assert [host.name for host in by_hand.load()] == ["node.7"]
    assert "# behind the bastion" in lines(by_hand)
    by_hand.remove("node.7")
    assert by_hand.load() == []
    assert 'text = "mine"' in lines(by_hand)
    by_hand.add(Host("again", "h"))
    assert by_hand.load() == [Host("again", "h")]


def test_a_linked_file_stays_a_link(by_hand: Inventory, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    by_hand.path.rename(real)
    by_hand.path.symlink_to(real)
    by_hand.add(Host("new", "h"))
    assert by_hand.path.is_symlink()
    assert "[hosts.new]" in real.read_text()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[hosts.a]\nhostname = "x"\nport = = 1\n', "line 3"),
        ("hosts = 1\n", "hosts is not a table"),
        ("[hosts]\na = 1\n", "hosts.a is not a table"),
        ("[hosts.a]\nport = 1\n", "hosts.a has no hostname"),
        ('[hosts.a]\nhostnam = "x"\n', "hosts.a.hostnam is no key of a host: did you mean hostname"),
        ('[hosts.a]\nhostname = "x"\nPort = 2\n', "did you mean port"),
        ('[hosts.a]\nhostname = "x"\nidentity-file = "k"\n', "did you mean identity_files"),
        ('[hosts.a]\nhostname = "x"\npeer_address = "10.0.0.1"\n', "did you mean address"),
        ('[hosts.a]\nhostname = "-oProxyCommand=x"\n', "hosts.a.hostname"),
        ('[hosts.a]\nhostname = "x"\nport = "22"\n', "hosts.a.port is '22'"),
        ('[hosts.a]\nhostname = "x"\nport = 0\n', "hosts.a.port: '0'"),
        ('[hosts.a]\nhostname = "x"\nport = true\n', "hosts.a.port is True"),
        ('[hosts.a]\nhostname = "x"\nuser = "a b"\n', "hosts.a.user"),
        ('[hosts.a]\nhostname = "x"\nidentity_files = "k"\n', "hosts.a.identity_files"),
        ('[hosts.a]\nhostname = "x"\nidentity_files = [1]\n', "hosts.a.identity_files"),
        ('[hosts.a]\nhostname = "x"\nidentities_only = "yes"\n', "hosts.a.identities_only"),
        ('[hosts.a]\nhostname = "x"\nproxy_jump = "a,-b"\n', "hosts.a.proxy_jump"),
        ('[hosts.a]\nhostname = "x"\nhome = "/a\'; id"\n', "hosts.a.home"),
        ('[hosts.a]\nhostname = "x"\nhome = "relative"\n', "hosts.a.home"),
        ('[hosts.a]\nhostname = "x"\npython = "/a$(id)"\n', "hosts.a.python"),
        ('[hosts.a]\nhostname = "x"\ninterface = "eth 0"\n', "hosts.a.interface is 'eth 0'"),
        ('[hosts.a]\nhostname = "x"\ninterface = "a-name-too-long0"\n', "hosts.a.interface"),
        ('[hosts.a]\nhostname = "x"\naddress = "node7"\n', "hosts.a.address is 'node7'"),
        ('[hosts.a]\nhostname = "x"\naddress = "127.0.0.1"\n', "hosts.a.address"),
        ('[hosts.a]\nhostname = "x"\naddress = "fe80::1%eth0"\n', "hosts.a.address"),
        ('[hosts.a]\nhostname = "x"\nports = "20100-20000"\n', "hosts.a.ports is '20100-20000'"),
        ('[hosts.a]\nhostname = "x"\nports = "0-65535"\n', "hosts.a.ports"),
        ('[hosts.a]\nhostname = "x"\nports = "1-65536"\n', "hosts.a.ports"),
        ('[hosts.a]\nhostname = "x"\nports = [1, 2]\n', "hosts.a.ports is [1, 2]"),
        ('[hosts."a b"]\nhostname = "x"\n', "'a b'"),
        ('[hosts.a]\nhostname = "x"\n[hosts.a]\nhostname = "y"\n', "a"),
    ],
)
def test_a_broken_file_is_named_and_never_touched(inventory: Inventory, text: str, named: str) -> None:
    inventory.path.parent.mkdir()
    inventory.path.write_text(text)
    for action in (inventory.load, lambda: inventory.add(Host("b", "h"))):
        with pytest.raises(UsageError) as caught:
            action()
        assert str(inventory.path) in caught.value.message
        assert named in caught.value.message
    assert inventory.path.read_text() == text


def test_not_text(inventory: Inventory) -> None:
    inventory.path.parent.mkdir()
    inventory.path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        inventory.load()


def test_refusals_say_what_to_do(by_hand: Inventory) -> None:
    with pytest.raises(UsageError, match="no host nobody") as caught:
        by_hand.get("nobody")
    assert caught.value.hint == "The hosts are: vast, node.7"
    with pytest.raises(UsageError, match="There is a host vast already"):
        by_hand.add(Host("vast", "h"))
    with pytest.raises(UsageError, match="already, as vast"):
        by_hand.add(Host("twin", "203.0.113.7", 20544))
    with pytest.raises(UsageError, match="There is a host vast already"):
        by_hand.rename("node.7", "vast")
    with pytest.raises(UsageError, match="cannot be the name"):
        by_hand.rename("vast", "../etc")
    for action in (by_hand.remove, lambda name: by_hand.rename(name, "x")):
        with pytest.raises(UsageError, match="no host nobody"):
            action("nobody")
    assert by_hand.path.read_text() == BY_HAND


def test_what_could_not_be_read_again_is_not_written(inventory: Inventory) -> None:
    for host in (Host("a", "-oProxyCommand=x"), Host("a", "h", home="/it's"), Host("a", "h", 99999)):
        with pytest.raises(UsageError):
            inventory.add(host)
    assert not inventory.path.exists()


def test_a_form_that_cannot_be_renamed_is_refused(inventory: Inventory) -> None:
    inventory.path.parent.mkdir()
    inventory.path.write_text(text := 'hosts = { a = { hostname = "x" } }\n')
    with pytest.raises(UsageError, match="cannot rename"):
        inventory.rename("a", "b")
    assert inventory.path.read_text() == text


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        Inventory(tmp_path / "file" / "hosts.toml").add(Host("a", "h"))


def test_names_are_made_from_the_address(inventory: Inventory) -> None:
    for text, name in [
        ("root@203.0.113.7:20544", "203.0.113.7-20544"),
        ("root@203.0.113.7:20545", "203.0.113.7-20545"),
        ("me@203.0.113.7:20545", "203.0.113.7-20545-2"),
        ("you@203.0.113.7:20545", "203.0.113.7-20545-3"),
        ("gpu-box", "gpu-box"),
        ("2001:db8::1", "2001-db8-1"),
        ("::1", "1"),
    ]:
        assert inventory.add_target(parse_ssh_command(text)).name == name
    assert default_name(parse_ssh_command("x" * 200), ()) == "x" * 48
    assert inventory.add_target(parse_ssh_command("gpu-box:2"), "mine").name == "mine"


ADD = """
import sys
from pathlib import Path
from tui.fleet.hosts import Host, Inventory, parse_ssh_command
inventory = Inventory(Path(sys.argv[1]))
sys.stdin.readline()
for number in range(6):
    inventory.add_target(parse_ssh_command(f"user{sys.argv[2]}-{number}@h:1022"))
    inventory.add(Host(f"{sys.argv[2]}-{number}", f"h{sys.argv[2]}-{number}"))
"""


def test_processes_that_add_at_once_lose_nothing(inventory: Inventory) -> None:
    adders = [
        subprocess.Popen([sys.executable, "-c", ADD, inventory.path, str(number)], stdin=subprocess.PIPE)
        for number in range(3)
    ]
    try:
        for adder in adders:
            assert adder.stdin is not None
            adder.stdin.write(b"\n")
            adder.stdin.flush()
        assert [adder.wait(30) for adder in adders] == [0, 0, 0]
    finally:
        for adder in adders:
            adder.kill()
            adder.communicate()
    names = [host.name for host in inventory.load()]
    assert len(names) == len(set(names)) == 36
    assert {f"{writer}-{number}" for writer in range(3) for number in range(6)} <= set(names)

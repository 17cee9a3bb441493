"""The texts by which people and providers name hosts."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.fleet.errors import UsageError
from tui.fleet.target import ParsedTarget, format_address, parse_ssh_command, split_destination


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Vast.ai
        (
            "ssh -p 20544 root@203.0.113.7 -L 8080:localhost:8080",
            ParsedTarget("203.0.113.7", "root", 20544, ignored=("-L 8080:localhost:8080",)),
        ),
        # RunPod over TCP, and through its proxy
        (
            "ssh root@1.2.3.4 -p 22 -i ~/.ssh/id_ed25519",
            ParsedTarget("1.2.3.4", "root", 22, ("~/.ssh/id_ed25519",)),
        ),
        (
            "ssh 8y5rumuyb50m78-6441103b@ssh.runpod.io -i ~/.ssh/id_ed25519",
            ParsedTarget("ssh.runpod.io", "8y5rumuyb50m78-6441103b", None, ("~/.ssh/id_ed25519",)),
        ),
        # Lambda, Hetzner
        ("ssh ubuntu@192.0.2.10", ParsedTarget("192.0.2.10", "ubuntu")),
        ("ssh root@static.10.2.clients.example.com", ParsedTarget("static.10.2.clients.example.com", "root")),
        # a bastion
        ("ssh -J me@b.example.com:22,c u@h", ParsedTarget("h", "u", proxy_jump="me@b.example.com:22,c")),
        # glued values, bunches, -o in its forms, quotes
        ("ssh -p20544 -lroot h", ParsedTarget("h", "root", 20544)),
        ("ssh -vNTp 22 h", ParsedTarget("h", None, 22, ignored=("-v", "-N", "-T"))),
        ("ssh -oPort=22 h", ParsedTarget("h", None, 22)),
        ('ssh -o "Port 22" h', ParsedTarget("h", None, 22)),
        ("ssh -o 'User = me' -o identityfile=/k h", ParsedTarget("h", "me", None, ("/k",))),
        ("ssh -o IdentitiesOnly=yes -i '/a b/key' h", ParsedTarget("h", None, None, ("/a b/key",), True)),
        ("ssh -o ProxyJump=none h", ParsedTarget("h", proxy_jump="none")),
        (
            "ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null h",
            ParsedTarget("h", ignored=("-o StrictHostKeyChecking=no", "-o UserKnownHostsFile=/dev/null")),
        ),
        # as ssh does: the first value counts, the option before the user in front of the host
        ("ssh -p 1 -p 2 -l a b@h", ParsedTarget("h", "a", 1)),
        ("$ ssh root@h", ParsedTarget("h", "root")),
        ("/usr/bin/ssh -A root@h", ParsedTarget("h", "root", ignored=("-A",))),
        ("ssh -p 20544 \\\n  root@h", ParsedTarget("h", "root", 20544)),
        # no command at all
        ("gpu-box", ParsedTarget("gpu-box")),
        ("root@h:20544", ParsedTarget("h", "root", 20544)),
        ("[2001:db8::7]:2222", ParsedTarget("2001:db8::7", None, 2222)),
        ("root@[2001:db8::7]", ParsedTarget("2001:db8::7", "root")),
        ("2001:db8::7", ParsedTarget("2001:db8::7")),
        ("root@fe80::1%eth0", ParsedTarget("fe80::1%eth0", "root")),
        ("ssh://root@h:2222/", ParsedTarget("h", "root", 2222)),
        ("ssh ssh://root@[::1]:2222", ParsedTarget("::1", "root", 2222)),
        ("me@corp.example.com@h", ParsedTarget("h", "me@corp.example.com")),
        ("-p 22 root@h", ParsedTarget("h", "root", 22)),
    ],
)  # fmt: skip
def test_understood(text: str, expected: ParsedTarget) -> None:
    assert parse_ssh_command(text) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ssh -F other h", "-F"),
        ("ssh -W a:1 h", "-W"),
        ("ssh -b 1.2.3.4 h", "-b"),
        ("ssh --port 22 h", "--port"),
        ("ssh -o ProxyCommand='nc %h %p' h", "ProxyCommand"),
        ("ssh -o Port h", "'Port'"),
        ("ssh h -p", "-p"),
        ("ssh -p 0 h", "'0'"),
        ("ssh -p 65536 h", "'65536'"),
        ("ssh -p ² h", "'²'"),
        ("ssh h nvidia-smi -l", "'nvidia-smi'"),
        ("ssh -N", "names no host"),
        ("", "No host"),
        ("ssh", "names no host"),
        ("ssh 'root@h", "quotes"),
        ("h:", "''"),
        ("h:22x", "'22x'"),
        ("root@", "''"),
        ("-oProxyCommand=touch", "ProxyCommand"),
        ("ssh -- -oProxyCommand=touch", "ProxyCommand"),
        ("root@-oProxyCommand", "host name"),
        ("-", "'-'"),
        ("-@h", "-@"),
        ("$(touch x)", "host name"),
        ("a;b", "host name"),
        ("`id`@h", "user name"),
        ("root@h\x1b[2J", "control characters"),
        ("root@h\u202e", "control characters"),
        ("ssh -J '-oProxyCommand=x' h", "host name"),
        ("ssh -J 'a,$(b)' h", "host name"),
        ("1:2:3", "IPv6"),
        ("::1%;id", "zone"),
        ("ssh://h/path", "path"),
        ("x" * 5000, "5000"),
        ("ssh -o IdentitiesOnly=perhaps h", "IdentitiesOnly"),
    ],
)
def test_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_ssh_command(text)
    assert named in caught.value.message


WORDS = ["ssh", "-p", "-i", "-o", "-J", "-L", "-l", "22", "root@h", "-oPort=2", "-vvN", "--", "a@[::1]:2"]
PLAIN = set(string.ascii_letters + string.digits + "._-:%")


@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(
            st.one_of(
                st.text(max_size=12),
                st.sampled_from(WORDS),
            ),
            max_size=8,
        ).map(" ".join),
    )
)  # fmt: skip
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        target = parse_ssh_command(text)
    except UsageError as error:
        assert error.message
        return
    assert target.hostname
    assert target.hostname[0] != "-"
    assert set(target.hostname) <= PLAIN
    assert target.port is None or 1 <= target.port <= 65535
    for word in (target.user or "u", *target.ignored):
        assert word.isprintable() or not word.isascii()


names = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)
hosts = st.one_of(names, st.ip_addresses().map(str))


@given(host=hosts, port=st.none() | st.integers(1, 65535), user=st.none() | names)
def test_addresses_read_back(host: str, port: int | None, user: str | None) -> None:
    assert split_destination(format_address(host, port, user)) == (user, host, port)

"""`encamp check` as a user has it, on one host; several are in the lab's tests."""

from __future__ import annotations

import pytest
from e2e.camp import Camp
from ssh.sshd import Sshd

pytestmark = pytest.mark.sshd

LEVELS = ("blocker", "warning", "ok")


def test_one_host_as_text_and_as_json(camp: Camp) -> None:
    done = camp.run("check", "box", "--json", code=None)
    document = done.json
    blockers = [each for each in document["findings"] if each["level"] == "blocker"]
    assert done.code == (1 if blockers else 0), "depends on whether this machine's own Python has torch"
    assert document["blockers"] == len(blockers)
    assert document["matrix"] is None
    host = document["hosts"][0]
    assert (host["name"], host["error"]) == ("box", None)
    assert abs(host["clock"]["offset"]) < 1
    assert host["facts"]["interpreters"]
    assert host["facts"]["host"]["cpu"]["usable"] > 0
    levels = [LEVELS.index(each["level"]) for each in document["findings"]]
    assert levels == sorted(levels)
    assert all(bool(each["fix"]) == (each["level"] != "ok") for each in document["findings"])

    text = camp.run("check", "box", code=done.code)
    lines = text.out.decode().splitlines()
    assert lines[0].startswith("box: ")
    assert {line.split()[0] for line in lines[1:] if line.startswith("  ") and line[2] != " "} <= set(LEVELS)
    assert text.err == "", "nothing is said of progress where nobody watches"


def test_a_host_that_is_gone(newcomer: Camp, box: Sshd) -> None:
    newcomer.run("hosts", "add", "ssh -p 1 nobody@127.0.0.1", "--name", "gone", "--no-connect")
    done = newcomer.run("check", "gone", "--json", code=3)
    assert done.json["hosts"][0]["error"]["message"]
    assert done.json["findings"][0]["check"] == "connection"
    assert (
        newcomer.run("check", "gone", code=3)
        .out.decode()
        .startswith("gone: 1 blocker\n  blocker  connection")
    )


def test_wrong_usage(newcomer: Camp) -> None:
    assert "HOST" in newcomer.run("check", code=2).err
    assert "There is no host nowhere" in newcomer.run("check", "nowhere", code=2).err

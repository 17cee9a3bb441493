"""Host keys and passwords, asked for on a terminal or settled by options, against a real OpenSSH server."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from e2e.camp import BEHAVE, Camp, Terminal
from ssh.sshd import PASSWORD, Sshd

pytestmark = pytest.mark.sshd


def test_a_new_key_needs_consent_and_nobody_is_there(newcomer: Camp, box: Sshd) -> None:
    newcomer.note_down(box)
    done = newcomer.run("status", "box", code=3)
    assert box.fingerprint() in done.out.decode()
    assert "--accept-new-host-key" in done.out.decode()
    host = newcomer.run("status", "--json", code=3).json["hosts"][0]
    assert host["state"] == "new-host-key"
    assert newcomer.run("status", "--json", "--accept-new-host-key").json["hosts"][0]["state"] == "live"
    assert newcomer.run("status", "--json").json["hosts"][0]["state"] == "live", "accepted for good"


def test_a_new_key_is_shown_on_the_terminal_and_only_a_whole_yes_accepts_it(
    newcomer: Camp, box: Sshd, terminal: Callable[..., Terminal]
) -> None:
    newcomer.note_down(box)
    first = terminal("status", "--json")
    first.wait(box.fingerprint())
    first.wait("yes/no")
    first.type("y\n")
    first.wait("type yes or no")
    first.type("no\n")
    assert first.end()[0] == 3
    second = terminal("status", "--json")
    second.wait("yes/no")
    second.type("yes\n")
    code, out = second.end()
    assert code == 0
    assert out.startswith(b"{"), "questions stay off stdout"
    assert newcomer.run("status").code == 0


def test_a_changed_key_is_refused_until_it_is_forgotten(
    newcomer: Camp, run_sshd: Callable[..., Sshd]
) -> None:
    server = run_sshd()
    newcomer.add(server)
    before = server.fingerprint()
    server.stop()
    server.new_host_key()
    server.start()
    for more in ([], ["--accept-new-host-key"]):
        done = newcomer.run("status", "--json", *more, code=3)
        host = done.json["hosts"][0]
        assert host["state"] == "key-changed"
        assert before in host["message"]
        assert server.fingerprint() in host["message"]
        assert "encamp hosts forget-key box" in host["hint"]
    assert newcomer.run("hosts", "forget-key", "box", "--json").json["forgotten"] >= 1
    newcomer.run("status", code=3)
    newcomer.run("status", "--accept-new-host-key")


def test_a_password_is_asked_for_on_the_terminal_and_never_shown(
    newcomer: Camp, run_sshd: Callable[..., Sshd], terminal: Callable[..., Terminal]
) -> None:
    server = run_sshd(password=True)
    newcomer.run("hosts", "add", f"{server.user}@127.0.0.1:{server.port}", "--name", "box", "--no-connect")
    refused = newcomer.run("status", "box", "--json", "--accept-new-host-key", code=3)
    assert refused.json["hosts"][0]["state"] == "auth-failed"
    asked = terminal("status", "--json")
    asked.wait("assword")
    asked.type(PASSWORD + "\n")
    assert asked.end()[0] == 0
    assert PASSWORD.encode() not in asked.shown
    folders = [path for path in newcomer.folder.rglob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in path.read_bytes() for path in folders)


def test_ctrl_c_ends_a_question_quietly(newcomer: Camp, box: Sshd, terminal: Callable[..., Terminal]) -> None:
    newcomer.note_down(box)
    asked = terminal("status")
    asked.wait("yes/no")
    asked.process.send_signal(signal.SIGINT)
    assert asked.end() == (130, b"")
    assert b"Traceback" not in asked.shown


@pytest.mark.torch
def test_a_run_on_a_host_that_does_not_answer_is_unreachable_and_not_failed(
    newcomer: Camp, run_sshd: Callable[..., Sshd]
) -> None:
    server = run_sshd()
    newcomer.add(server)
    run = newcomer.launch(BEHAVE, "gentle", "forever")
    assert newcomer.status(run)["state"] == "running"
    server.stop()
    status = newcomer.run("status", "--json", code=3).json
    assert status["hosts"][0]["state"] == "unreachable"
    assert status["hosts"][0]["runs"] == [run]
    assert [(entry["id"], entry["state"]) for entry in status["runs"]] == [(run, "unreachable")]
    assert run in newcomer.run("status", code=3).out.decode()
    assert f"{run} is on box" in newcomer.run("stop", run[:6], code=3).err
    server.start()
    assert newcomer.status(run)["state"] == "running"
    newcomer.run("stop", run)


@pytest.mark.torch
def test_the_word_for_a_run_is_neither_nothing_nor_two_when_two_names_are_one_machine(
    newcomer: Camp, run_sshd: Callable[..., Sshd]
) -> None:
    server = run_sshd()
    newcomer.add(server)
    address = f"ssh -p {server.port} -i {server.key} -o IdentitiesOnly=yes {server.user}@localhost"
    newcomer.run("hosts", "add", address, "--name", "twin", "--accept-new-host-key")
    run = newcomer.launch(BEHAVE, "gentle", "forever")
    assert newcomer.run("stop", "", code=2).err.startswith("encamp: The name of the run is empty.")
    assert newcomer.run("logs", run, "--attempt", "0", code=2).err.startswith("encamp: There is no attempt 0")
    assert newcomer.run("stop", run[:6], "--json").json["run"] == run

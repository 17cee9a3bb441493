"""The command line as a user or a script meets it: what it accepts, says and returns, without any host."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tui.__main__ import main
from tui.cli import parser

Run = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def encamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command line in this process with folders of its own: exit code, stdout, stderr."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ENCAMP_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("ENCAMP_STATE_DIR", str(tmp_path / "state"))

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on loopback that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets it meanwhile
        yield taken.getsockname()[1]


def leaves(commands: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command, as the words that name it."""
    groups = [action for action in commands._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield words
    for action in groups:
        for name, sub in action.choices.items():
            yield from leaves(sub, (*words, name))


COMMANDS = sorted(leaves(parser.build()))


def test_all_commands_are_there() -> None:
    assert {" ".join(words) for words in COMMANDS} >= {
        "demo", "hosts add", "hosts forget-key", "hosts list", "hosts remove", "hosts rename", "launch",
        "logs", "profiles check", "profiles list", "profiles new", "profiles show", "restart", "status",
        "stop", "wait",
    }  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_has_an_example_that_it_understands(
    encamp: Run, words: tuple[str, ...]
) -> None:
    code, out, err = encamp(*words, "--help")
    assert (code, err) == (0, "")
    examples = [line.strip() for line in out.partition("examples:")[2].splitlines() if line.strip()]
    assert examples
    assert all(line.startswith("encamp ") for line in examples)
    assert any(line.startswith("encamp " + " ".join(words)) for line in examples)
    assert "--json" in out or words == ("shell",), "a session by hand has no result"


def test_help_and_version(encamp: Run) -> None:
    code, out, _ = encamp("--help")
    assert code == 0
    assert "exit codes" in out
    assert encamp("--version") == (0, "encamp 0.1.0\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lunch"], "lunch"),
        (["launch", "gpt-tiny"], "--on"),
        (["stop"], "RUN"),
        (["stop", "x", "--grace", "-1"], "number of seconds"),
        (["logs", "x", "--rank", "one"], "whole number"),
        (["logs", "x", "--rank", "1", "--merged"], "not allowed with"),
        (["wait", "x", "--state", "happy"], "happy"),
        (["hosts"], "COMMAND"),
        (["hosts", "remove", "nobody"], "no host nobody"),
        (["launch", "no-such-profile", "--on", "x"], "no-such-profile"),
        (["status", "nobody"], "no host nobody"),
        (["stop", "x"], "no hosts yet"),
        (["demo", "--headless", "--hosts", "0"], "--hosts 0"),
        (["demo", "--json"], "--headless"),
        ([], "terminal"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(encamp: Run, words: list[str], message: str) -> None:
    code, out, err = encamp(*words)
    assert code == 2
    assert out == "" or "--json" in words
    assert err.startswith("encamp: ")
    assert message in err
    if "--json" not in words and "no-such-profile" not in words:
        assert len(err.splitlines()) == 2, "a refusal says what to do next"
    assert "Traceback" not in err


def test_an_error_of_a_json_call_is_the_one_object_on_stdout_as_well(encamp: Run) -> None:
    code, out, err = encamp("stop", "x", "--json")
    assert code == 2
    error = json.loads(out)["error"]
    assert error["exit_code"] == 2
    assert error["message"] in err
    assert error["hint"]


def test_words_after_two_dashes_belong_to_the_script() -> None:
    args = parser.parse(["launch", "p", "--on", "h", "--set", "a=1", "--", "--json", "--", "--lr", "3"])
    assert args.extra == ["--json", "--", "--lr", "3"]
    assert not args.json
    assert args.settings == ["a=1"]


def test_an_ssh_command_without_quotes_says_that_it_needs_them(encamp: Run) -> None:
    code, _, err = encamp("hosts", "add", "ssh", "-p", "22", "root@203.0.113.7")
    assert code == 2
    assert "in quotes" in err


# --- hosts -------------------------------------------------------------------------------------------------


def test_hosts_live_through_add_list_rename_remove(encamp: Run, tmp_path: Path) -> None:
    command = "ssh -p 20544 root@203.0.113.7 -L 8080:localhost:8080 -i ~/.ssh/key"
    code, out, err = encamp("hosts", "add", command, "--name", "vast-a", "--no-connect", "--json")
    assert code == 0
    assert "-L 8080:localhost:8080" in err, "what is ignored is said"
    assert json.loads(out) == {
        "name": "vast-a",
        "address": "root@203.0.113.7:20544",
        "hostname": "203.0.113.7",
        "port": 20544,
        "user": "root",
        "identity_files": ["~/.ssh/key"],
        "identities_only": False,
        "proxy_jump": None,
        "interface": None,
        "peer_address": None,
        "ports": None,
    }
    assert encamp("hosts", "add", "box", "--no-connect")[0] == 0
    listed = json.loads(encamp("hosts", "list", "--json")[1])["hosts"]
    assert [host["name"] for host in listed] == ["vast-a", "box"]
    assert json.loads(encamp("hosts", "rename", "box", "crate", "--json")[1])["old_name"] == "box"
    assert json.loads(encamp("hosts", "remove", "vast-a", "--json")[1])["removed"]["name"] == "vast-a"
    code, out, _ = encamp("hosts", "list")
    assert code == 0
    assert "crate" in out
    assert "vast-a" not in out
    assert (tmp_path / "config" / "hosts.toml").exists()


def test_a_host_is_added_with_what_others_reach_of_it(encamp: Run) -> None:
    network = ("--interface", "wg0", "--peer-address", "10.8.0.2", "--ports", "20000-20100")
    code, out, _ = encamp("hosts", "add", "root@box:22", "--no-connect", "--json", *network)
    assert code == 0
    added = json.loads(out)
    assert (added["interface"], added["peer_address"], added["ports"]) == ("wg0", "10.8.0.2", [20000, 20100])
    assert json.loads(encamp("hosts", "list", "--json")[1])["hosts"] == [added]
    code, out, err = encamp("hosts", "add", "root@crate", "--no-connect", "--ports", "9-5")
    assert (code, out) == (2, "")
    assert "--ports is '9-5'" in err
    assert "such as 20000-20100" in err
    assert json.loads(encamp("hosts", "list", "--json")[1])["hosts"] == [added]


def test_forgetting_a_key_that_was_never_accepted_is_no_error(encamp: Run) -> None:
    encamp("hosts", "add", "box", "--no-connect")
    assert json.loads(encamp("hosts", "forget-key", "box", "--json")[1]) == {"host": "box", "forgotten": 0}


def test_a_host_that_does_not_answer_is_added_all_the_same(encamp: Run, closed_port: int) -> None:
    code, out, err = encamp("hosts", "add", f"root@127.0.0.1:{closed_port}", "--name", "later", "--json")
    assert code == 0
    added = json.loads(out)
    assert added["state"] == "unreachable"
    assert added["message"]
    assert "cannot be used yet" in err
    assert encamp("hosts", "list", "--json")[1].count('"later"') == 1


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "{profile}", "--on", "later", "--json"],
        ["stop", "some-run", "--json"],
        ["restart", "some-run", "--json"],
        ["wait", "some-run", "--json"],
        ["logs", "some-run", "--json"],
    ],
    ids=lambda words: words[0],
)
def test_an_unreachable_host_is_exit_code_3_at_once(
    encamp: Run, closed_port: int, tmp_path: Path, words: list[str]
) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text('[run]\nscript = "train.py"\n')
    encamp("hosts", "add", f"root@127.0.0.1:{closed_port}", "--name", "later", "--no-connect")
    code, out, err = encamp(*(word.format(profile=profile) for word in words))
    assert code == 3
    assert str(closed_port) in err
    assert json.loads(out)["error"]["exit_code"] == 3


# --- status, profiles --------------------------------------------------------------------------------------


def test_the_status_of_nothing(encamp: Run) -> None:
    assert encamp("status", "--json") == (0, '{\n  "hosts": [],\n  "runs": []\n}\n', "")
    assert "hosts add" in encamp("status")[1]


def test_the_status_of_a_host_that_does_not_answer(encamp: Run, closed_port: int) -> None:
    encamp("hosts", "add", f"root@127.0.0.1:{closed_port}", "--name", "later", "--no-connect")
    code, out, _ = encamp("status", "--json")
    host = json.loads(out)["hosts"][0]
    assert code == 3
    assert (host["name"], host["state"], host["gpus"], host["runs"]) == ("later", "unreachable", [], [])
    assert host["agent"]["version"] is None
    assert host["message"]
    code, out, _ = encamp("status")
    assert code == 3
    assert "unreachable" in out


def test_profiles_of_ones_own_are_listed_shown_and_checked(encamp: Run, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    text = 'description = "mine"\n[run]\nscript = "train.py"\nargs = ["--lr", "1"]\n'
    (folder / "mine.toml").write_text(text)
    (folder / "broken.toml").write_text("[run\n")
    listed = {
        entry["name"]: entry for entry in json.loads(encamp("profiles", "list", "--json")[1])["profiles"]
    }
    assert listed["mine"]["description"] == "mine"
    assert listed["mine"]["shipped"] is False
    assert "broken.toml" in listed["broken"]["error"]
    assert encamp("profiles", "show", "mine") == (0, text, "")
    shown = json.loads(encamp("profiles", "show", "mine", "--json")[1])
    assert shown["run"]["nproc_per_node"] == "auto"
    checked = json.loads(encamp("profiles", "check", "mine", "--set", "run.nproc_per_node=3", "--json")[1])
    assert checked["profile"]["run"]["nproc_per_node"] == 3


def test_a_wrong_profile_names_file_key_value_and_what_is_allowed(encamp: Run, tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text('[run]\nscript = "x.py"\nnproc_per_node = "many"\n')
    code, out, err = encamp("profiles", "check", str(profile))
    assert (code, out) == (2, "")
    for part in (str(profile), "run.nproc_per_node", '"many"', "auto"):
        assert part in err


# --- the process -------------------------------------------------------------------------------------------


def process(*words: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tui", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )


def test_a_reader_that_goes_away_is_no_reason_to_complain() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(
        [sys.executable, "-m", "tui", "profiles", "list"], stdout=writing, stderr=subprocess.PIPE
    ) as running:
        os.close(writing)
        _, err = running.communicate(timeout=30)
    assert err == b""
    assert running.returncode == 141


@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(
    "words", [["profiles", "list"], ["profiles", "show", "none"]], ids=["result", "error"]
)
def test_a_stdout_that_takes_nothing_is_an_exit_code(words: list[str], json: list[str]) -> None:
    command = [sys.executable, "-m", "tui", *words, *json]
    code = 2 if "none" in words else 1
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == code
    assert ended.stderr.startswith(b"encamp: ")
    assert b"Traceback" not in ended.stderr
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, check=False)
    assert closed.returncode == (2 if "none" in words else 0)
    assert b"Traceback" not in closed.stderr


def test_what_needs_no_host_loads_neither_ssh_nor_the_screen(tmp_path: Path) -> None:
    script = (
        "import sys; from tui.__main__ import main\n"
        "codes = [main(words) for words in (['--help'], ['profiles', 'list'], ['hosts', 'list'])]\n"
        "heavy = {'asyncssh', 'textual', 'cryptography', 'torch', 'asyncio'} & set(sys.modules)\n"
        "assert codes == [0, 0, 0] and not heavy, (codes, heavy)\n"
    )
    environment = {**os.environ, "ENCAMP_CONFIG_DIR": str(tmp_path), "ENCAMP_STATE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, stdout=subprocess.DEVNULL)


def test_encamps_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "ENCAMP_CONFIG_DIR": str(tmp_path), "ENCAMP_STATE_DIR": str(tmp_path)}
    names = [f"box-{number}" for number in range(6)]
    running = [
        process("hosts", "add", f"{name}.example", "--name", name, "--no-connect", env=environment)
        for name in names
    ]
    for each in running:
        _, err = each.communicate(timeout=60)
        assert each.returncode == 0, err
    listing = process("hosts", "list", "--json", env=environment)
    out, _ = listing.communicate(timeout=60)
    assert {host["name"] for host in json.loads(out)["hosts"]} == set(names)


@pytest.mark.parametrize("command", ["stop r", "restart r", "drill r", "signal r --rank 0 --signal CONT"])
def test_read_only_refuses_what_changes_a_run(encamp: Run, command: str) -> None:
    code, _, err = encamp("--read-only", *command.split())
    assert code == 2
    assert "--read-only keeps all as it is" in err
    assert "--read-only" not in encamp("--read-only", "watch", "r")[2]
    assert "--read-only" in encamp("--read-only", "watch", "r", "--on-stall", "restart")[2]

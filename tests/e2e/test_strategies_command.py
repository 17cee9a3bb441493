"""Strategies on a real host by the command: what can run there, and a script of the user's under one."""

from __future__ import annotations

import json

import pytest
from e2e.camp import SCRIPTS, Camp, log_file
from ssh.sshd import Sshd

from profiles import keys

pytestmark = pytest.mark.sshd


def test_what_a_host_can_run_is_said_with_what_helps(camp: Camp, box: Sshd) -> None:
    document = camp.run("strategies", "--on", "box", "--json").json
    assert document["hosts"] == ["box"]
    here = {each["name"]: each["here"] for each in document["strategies"]}
    assert list(here) == list(keys.STRATEGIES)
    for name, verdict in here.items():
        assert verdict["can_run"] in ("yes", "warning", "no"), f"{name}: its Pythons have been asked"
        assert bool(verdict["why"]) == (verdict["can_run"] != "yes")
        assert not verdict["fix"].endswith("--on HOST"), "a command is for pasting"
    text = camp.run("strategies", "--on", "box").out.decode()
    assert text.splitlines()[0].split()[-4:] == ["CAN", "RUN", "ON", "box"]
    listed = camp.run("strategies").out.decode()
    assert "NEEDS" in listed.splitlines()[0]
    assert camp.run("strategies", "--json").json["strategies"][0]["here"] is None


def test_a_host_that_is_unknown_or_gone(newcomer: Camp) -> None:
    assert "There is no host nowhere" in newcomer.run("strategies", "--on", "nowhere", code=2).err
    newcomer.run("hosts", "add", "ssh -p 1 nobody@127.0.0.1", "--name", "gone", "--no-connect")
    newcomer.run("strategies", "--on", "gone", code=3)


@pytest.mark.torch
def test_a_script_runs_under_a_strategy_that_is_the_launchers_alone(camp: Camp, box: Sshd) -> None:
    profile = camp.profile(SCRIPTS / "reduce.py", name="script-mode")
    words = ("launch", profile, "--on", "box", "--set", "run.strategy=zero2", "--json")
    run = camp.run(*words).json["run"]
    assert camp.run("wait", run, "--timeout", "60", "--json").json["state"] == "finished"
    status = camp.status(run)
    assert (status["strategy"], status["world_size"]) == ("zero2", 2)
    assert "torch.distributed.run" in status["command"]
    assert status["training"] is None, "a script that says nothing of itself"
    assert b"of 2 counts 2" in log_file(box, run, "rank0").read_bytes()


def test_the_nearest_strategies_are_offered(camp: Camp) -> None:
    profile = camp.profile(SCRIPTS / "reduce.py")
    done = camp.run("launch", profile, "--on", "box", "--strategy", "Zero", "--json", code=2)
    assert 'did you mean "zero1", "zero2" or "zero3"?' in json.loads(done.out)["error"]["message"]

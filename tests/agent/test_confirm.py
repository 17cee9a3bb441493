"""A started node of a run on several hosts that nobody confirms: its supervisor ends it, alone if need be."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts import SCRIPTS, Lab, ended, log
from waiting import wait_until

from agent import control, files, instance, paths, prepare, process, wire
from agent.attempt import Attempt
from agent.launch import Command

NODES = (wire.Node("lead", "a" * 32, "10.0.0.1", "eth0"), wire.Node("box", "b" * 32, "10.0.0.2", "eth0"))

SUPERVISE = """
import sys
sys.path.insert(0, sys.argv[1])
from agent import supervise
supervise.CONFIRM_SECONDS, supervise.CALLED_OFF_GRACE_SECONDS = 0.5, 0.2
sys.exit(supervise.main(sys.argv[2:]))
"""

WAITING = "import time\nprint('waiting for the others', flush=True)\ntime.sleep(600)\n"


class Node(Lab):
    """One host of two, under supervisors that wait for a confirmation for half a second."""

    def node(self, script: str, *words: str, hosts: int = 2) -> Attempt:
        """A started attempt whose launcher is the Python source `script`, or without it the stand-in's."""
        launcher = self.folder / "waiting.py"
        launcher.write_text(script or (SCRIPTS / "launcher.py").read_text())
        spec = self.spec("run-a", *words)
        folder = paths.attempt_dir(self.home, spec.run, 1)
        argv = (self.python, str(launcher), "2", f"{folder}/rank.py", "script", spec.target, *spec.args)
        env = {
            "ENCAMP_RUN": spec.run,
            "ENCAMP_ATTEMPT": "1",
            "ENCAMP_ATTEMPT_DIR": folder,
            "FIRST_RANK": "2",
        }
        command = Command(argv, env, spec.cwd, self.python, 2, 4, 1, "torchrun")
        place = wire.to_json(wire.Placement(NODES[:hosts], hosts - 1, "10.0.0.1", 29500, "x"))
        attempt = prepare.create(self.home, spec, 1, command, placement=place)
        self.attempts.append(attempt)
        self.supervise(attempt)
        return attempt


@pytest.fixture
def node(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    source = str(Path(instance.__file__).parent.parent)

    def command(_: str, *arguments: str) -> list[str]:
        return [sys.executable, "-c", SUPERVISE, source, *arguments]

    monkeypatch.setattr(instance, "agent_command", command)
    laboratory = Node(home, tmp_path)
    yield laboratory
    laboratory.close()


def test_a_node_that_waits_for_hosts_of_which_nobody_knows_is_ended(node: Node) -> None:
    attempt = node.node(WAITING)
    condition = ended(attempt)
    assert condition.state == "failed"
    assert condition.reason == "the other hosts were not started: the encamp that launched it was lost"
    assert log(attempt, "launcher") == "waiting for the others\n"


def test_one_that_does_not_hear_sigterm_is_killed(node: Node) -> None:
    deaf = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITING}"
    condition = ended(node.node(deaf))
    assert condition.state == "failed"
    assert condition.reason.startswith("the other hosts were not started")


def test_a_confirmed_one_goes_on_waiting(node: Node) -> None:
    attempt = node.node(WAITING)
    control.confirm(node.home, "run-a", 1)
    control.confirm(node.home, "run-a", 1)
    launcher = files.read_json(f"{attempt.dir}/launcher.json") or {}
    identity = int(str(launcher["pid"])), int(str(launcher["start_time"]))
    with pytest.raises(AssertionError, match="not within"):
        wait_until(lambda: not process.alive(*identity), 1.5, "it ends")
    control.stop(node.home, "run-a", "ann", 0.1)
    assert ended(attempt).reason.startswith("stopped by ann")


def test_a_rank_shows_that_all_hosts_are_there(node: Node) -> None:
    attempt = node.node("", "forever")
    wait_until(lambda: attempt.condition().state == "running")
    with pytest.raises(AssertionError, match="not within"):
        wait_until(lambda: attempt.condition().over, 1.5, "it ends")


def test_a_run_on_one_host_needs_no_confirmation(node: Node) -> None:
    attempt = node.node(WAITING, hosts=1)
    with pytest.raises(AssertionError, match="not within"):
        wait_until(lambda: attempt.condition().over, 1.5, "it ends")


def test_the_time_goes_on_when_another_supervisor_takes_over(node: Node) -> None:
    attempt = node.node(WAITING)
    supervisor = attempt.supervisor()
    assert supervisor is not None
    os.kill(supervisor[0], signal.SIGKILL)
    wait_until(lambda: not process.alive(*supervisor))
    node.supervise(attempt, "--adopt")
    assert ended(attempt).reason.startswith("the other hosts were not started")


def test_the_rank_that_failed_is_named_by_its_global_number(node: Node) -> None:
    attempt = node.node("", "2:forever", "3:exit=5")
    condition = ended(attempt)
    assert condition.reason == "rank 3 exited with code 5"
    wait_until(lambda: (files.read_json(f"{attempt.dir}/rank3/exit.json") or {}).get("code") == 5)


def test_a_killed_rank_s_end_is_recorded_under_its_global_number(node: Node) -> None:
    attempt = node.node("", "2:forever", "3:kill")
    assert ended(attempt).reason == "rank 3 was killed by SIGKILL"
    assert (files.read_json(f"{attempt.dir}/rank3/exit.json") or {}).get("code") == -9


def test_adopted_ranks_that_end_well_make_a_finished_node(node: Node) -> None:
    attempt = node.node("", "wait")
    wait_until(lambda: attempt.condition().state == "running")
    supervisor = attempt.supervisor()
    assert supervisor is not None
    os.kill(supervisor[0], signal.SIGKILL)
    wait_until(lambda: not process.alive(*supervisor))
    node.supervise(attempt, "--adopt")
    (node.folder / "go").touch()
    assert ended(attempt).state == "finished"

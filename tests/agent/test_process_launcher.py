"""Our own launcher with real processes under a real supervisor: what they get, and how they end."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts import SCRIPTS, Lab, ended, log
from waiting import wait_until

from agent import control, files, paths, prepare, process, process_launcher, wire
from agent.attempt import Attempt
from agent.launch import Command
from agent.launchers import PROCESS_LAUNCHER

SAY = SCRIPTS / "behave.py"


class Launchers(Lab):
    """Attempts whose ranks our launcher starts."""

    def begin(self, role: str, *words: str, options: tuple[str, ...] = (), **more: object) -> Attempt:
        """Start an attempt; of `more` there are `nproc`, `grace`, `script` and `all`, its processes here."""
        nproc = int(str(more.get("nproc", 2)))
        processes = int(str(more.get("all", nproc)))
        run = f"run-{len(self.attempts)}"
        grace = float(str(more.get("grace", 20)))
        script = str(more.get("script", SAY))
        spec = wire.LaunchSpec(
            run, "a run", "test", role, "script", script, words, str(self.folder), nproc,
            stop_grace_seconds=grace,
        )  # fmt: skip
        folder = paths.attempt_dir(self.home, run, 1)
        argv = (
            self.python, f"{folder}/{PROCESS_LAUNCHER}", role, "--nproc", str(nproc), "--grace", str(grace),
            *options, "--", f"{folder}/rank.py", "script", script, *words,
        )  # fmt: skip
        env = {
            "ENCAMP_HOME": self.home, "ENCAMP_RUN": run, "ENCAMP_ATTEMPT": "1", "ENCAMP_ATTEMPT_DIR": folder,
        }  # fmt: skip
        command = Command(argv, env, spec.cwd, self.python, processes, processes, 1, "encamp's launcher")
        attempt = prepare.create(self.home, spec, 1, command)
        self.attempts.append(attempt)
        self.supervise(attempt)
        return attempt

    def running(self, role: str, *words: str, **more: object) -> Attempt:  # type: ignore[override]
        """The same, once all processes have begun and said `ready`."""
        attempt = self.begin(role, *words, **more)  # type: ignore[arg-type]
        wait_until(lambda: attempt.condition().state == "running", message="all ranks are registered")
        wait_until(lambda: all("ready" in log(attempt, f"rank{rank}") for rank in attempt.expected()))
        return attempt


@pytest.fixture
def launchers(home: str, tmp_path: Path) -> Iterator[Launchers]:
    laboratory = Launchers(home, tmp_path)
    yield laboratory
    laboratory.close()


@pytest.fixture
def any_launchers(python: str, home: str, tmp_path: Path) -> Iterator[Launchers]:
    laboratory = Launchers(home, tmp_path, python)
    yield laboratory
    laboratory.close()


@pytest.fixture
def show(tmp_path: Path) -> Path:
    """A script that prints what tells a process who it is."""
    script = tmp_path / "show.py"
    script.write_text(
        "import json, os\n"
        "names = ('RANK', 'LOCAL_', 'WORLD_', 'GROUP_', 'MASTER_', 'HOROVOD_', 'TF_CONFIG', 'CUDA_VISIBLE')\n"
        "print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(names)}), flush=True)\n"
        "while 'TF_CONFIG' in os.environ and (os.environ['RANK'] != '0' or not os.path.exists('go')):\n"
        "    import time; time.sleep(0.05)\n"
    )
    return script


def shown(attempt: Attempt, rank: int) -> dict[str, str]:
    values: dict[str, str] = json.loads(log(attempt, f"rank{rank}"))
    return values


def codes(attempt: Attempt) -> list[object]:
    found = (files.read_json(f"{attempt.dir}/rank{rank}/exit.json") or {} for rank in attempt.expected())
    return [values.get("code") for values in found]


# --- what they get -----------------------------------------------------------------------------------------


def test_ranks_of_horovod_know_who_they_are(any_launchers: Launchers, show: Path) -> None:
    attempt = any_launchers.begin("horovod", script=show, options=("--interface", "lo"))
    condition = ended(attempt)
    assert (condition.state, condition.reason, condition.exit_code) == ("finished", "", 0)
    both = [shown(attempt, rank) for rank in (0, 1)]
    for port in ("MASTER_PORT", "HOROVOD_GLOO_RENDEZVOUS_PORT"):
        assert both[0].pop(port) == both[1].pop(port)
    for rank, env in enumerate(both):
        assert env == {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
            "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": str(rank),
            "HOROVOD_LOCAL_SIZE": "2", "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_HOSTNAME": "node0", "HOROVOD_GLOO_IFACE": "lo", "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        }  # fmt: skip
    assert codes(attempt) == [0, 0]


def test_a_mirrored_run_is_one_process(launchers: Launchers, show: Path) -> None:
    attempt = launchers.begin("tf-mirrored", script=show, nproc=1)
    assert ended(attempt).state == "finished"
    assert shown(attempt, 0) == {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
    }  # fmt: skip


def test_a_parameter_server_s_cluster(any_launchers: Launchers, show: Path) -> None:
    attempt = any_launchers.begin("tf-parameter-server", script=show, all=4, options=("--devices", "2,5"))
    wait_until(lambda: all("}" in log(attempt, f"rank{rank}") for rank in range(4)))
    (any_launchers.folder / "go").touch()
    condition = ended(attempt)
    assert (condition.state, condition.reason, condition.exit_code) == ("finished", "", 0)
    every = [shown(attempt, rank) for rank in range(4)]
    configs = [json.loads(env["TF_CONFIG"]) for env in every]
    assert [config["task"] for config in configs] == [
        {"type": "chief", "index": 0}, {"type": "worker", "index": 0}, {"type": "worker", "index": 1},
        {"type": "ps", "index": 0},
    ]  # fmt: skip
    assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
    cluster = configs[0]["cluster"]
    assert {kind: len(addresses) for kind, addresses in cluster.items()} == {"chief": 1, "worker": 2, "ps": 1}
    addresses = [address for kind in cluster.values() for address in kind]
    assert len(set(addresses)) == 4
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert [env["CUDA_VISIBLE_DEVICES"] for env in every] == ["", "2", "5", ""]
    assert [env["WORLD_SIZE"] for env in every] == ["4"] * 4
    assert codes(attempt) == [0, 0, 0, 0], "those that serve for ever were ended as they should"


# --- ends --------------------------------------------------------------------------------------------------


def test_a_failing_rank_ends_the_others_and_is_named(any_launchers: Launchers) -> None:
    attempt = any_launchers.begin("horovod", "0:forever", "1:raise=no more data")
    condition = ended(attempt)
    assert (condition.state, condition.exit_code) == ("failed", 1)
    assert condition.reason == "rank 1 exited with code 1: ValueError: no more data"
    assert codes(attempt) == [-signal.SIGTERM, 1]


def test_others_may_say_why_they_fail_too(launchers: Launchers) -> None:
    attempt = launchers.begin("horovod", "0:kill", "1:wait", "1:raise=connection lost", "2:wait", nproc=3)
    wait_until(
        lambda: (Path(attempt.dir) / "rank2.log").exists() and (Path(attempt.dir) / "rank1.log").exists()
    )
    (launchers.folder / "go").touch()
    condition = ended(attempt)
    assert condition.state == "failed"
    assert condition.reason.startswith("rank 0 was killed by SIGKILL")


def test_a_deaf_rank_is_killed_when_another_has_failed(launchers: Launchers) -> None:
    attempt = launchers.begin("horovod", "0:deaf", "0:forever", "1:exit=3", grace=0.5)
    assert ended(attempt).reason == "rank 1 exited with code 3"
    assert codes(attempt)[1] == 3


def test_a_stop_is_passed_on_and_is_no_failure(any_launchers: Launchers) -> None:
    attempt = any_launchers.running("horovod", "gentle", "say=ready", "forever")
    control.stop(any_launchers.home, attempt.run, "ann@laptop")
    condition = ended(attempt)
    assert (condition.state, condition.exit_code) == ("stopped", 143)
    assert condition.reason == "stopped by ann@laptop"
    assert codes(attempt) == [0, 0]


def test_a_stop_that_is_not_heard_ends_all_the_same(launchers: Launchers) -> None:
    attempt = launchers.running("horovod", "1:deaf", "say=ready", "forever", grace=0.5)
    control.stop(launchers.home, attempt.run, "ann@laptop")
    condition = ended(attempt)
    assert condition.state == "stopped"
    assert condition.reason.endswith("did not end within 0.5 s and had to be killed")


def test_helpers_outlive_a_stop_until_the_chief_has_ended(launchers: Launchers, tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "rank = os.environ['RANK']\n"
        "def leave(*_):\n"
        "    with open('told', 'a') as file: file.write(rank)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    attempt = launchers.running("tf-parameter-server", script=script, all=3, nproc=1)
    control.stop(launchers.home, attempt.run, "ann@laptop")
    assert ended(attempt).state == "stopped"
    assert (tmp_path / "told").read_text()[0] == "0"


def test_a_worker_that_fails_ends_the_run(launchers: Launchers) -> None:
    attempt = launchers.begin("tf-parameter-server", "2:exit=4", "forever", all=4)
    condition = ended(attempt)
    assert (condition.state, condition.reason) == ("failed", "rank 2 exited with code 4")


def test_no_zombie_is_left_while_others_go_on(launchers: Launchers) -> None:
    attempt = launchers.begin("horovod", "0:exit=0", "1:wait")
    wait_until(lambda: codes(attempt)[0] == 0)
    first = attempt.ranks()[0][0]
    wait_until(lambda: process.stat(first) is None, message="the launcher has collected it")
    (launchers.folder / "go").touch()
    assert ended(attempt).state == "finished"


# --- the rendezvous ----------------------------------------------------------------------------------------


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""


def test_the_rendezvous_keeps_what_it_is_told() -> None:
    server = process_launcher.Rendezvous("127.0.0.1", 0)
    try:
        assert ask(server.port, "GET", "/global/0")[0] == 404
        assert ask(server.port, "PUT", "/global/0", b"\0address")[0] == 200
        assert ask(server.port, "GET", "/global/0") == (200, b"\0address")
        assert ask(server.port, "DELETE", "/global/0")[0] == 200
        assert server.has(["/global/0"])
    finally:
        server.shutdown()
        server.server_close()


def test_two_hosts_agree_on_a_port(launchers: Launchers, show: Path) -> None:
    port = process_launcher.free_ports(1)[0]
    shared = ("--nodes", "2", "--address", "127.0.0.1", "--port", str(port))
    second = launchers.begin("horovod", script=show, nproc=2, options=(*shared, "--node", "1"))
    first = launchers.begin("horovod", script=show, nproc=2, options=(*shared, "--node", "0"))
    assert [ended(attempt).exit_code for attempt in (first, second)] == [0, 0]
    ranks = [shown(first, 0), shown(first, 1), shown(second, 2), shown(second, 3)]
    assert len({env["MASTER_PORT"] for env in ranks}) == 1
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "HOROVOD_CROSS_RANK", "HOROVOD_HOSTNAME")
    assert [tuple(env[name] for name in names) for env in ranks] == [
        ("0", "0", "0", "0", "node0"), ("1", "1", "0", "0", "node0"),
        ("2", "0", "1", "1", "node1"), ("3", "1", "1", "1", "node1"),
    ]  # fmt: skip
    assert {env["HOROVOD_SIZE"] for env in ranks} == {env["WORLD_SIZE"] for env in ranks} == {"4"}


def test_a_host_that_waits_for_the_first_one_can_be_stopped(launchers: Launchers) -> None:
    port = process_launcher.free_ports(1)[0]
    options = ("--nodes", "2", "--node", "1", "--address", "127.0.0.1", "--port", str(port))
    attempt = launchers.begin("horovod", options=options)
    wait_until(lambda: os.path.exists(f"{attempt.dir}/launcher.json"))  # noqa: PTH110
    control.stop(launchers.home, attempt.run, "ann@laptop")
    assert ended(attempt).state == "stopped"


def test_ports_are_free_and_all_different() -> None:
    ports = process_launcher.free_ports(50)
    assert len(set(ports)) == 50

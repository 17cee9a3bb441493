"""What a host lacks is said before a launch, and `encamp env build` brings it: against a real sshd."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import wheels
from e2e.camp import Camp
from ssh.sshd import Sshd
from waiting import wait_until

pytestmark = [pytest.mark.sshd, pytest.mark.torch, pytest.mark.slow]

TRAINER = ("--set", "train.size=tiny", "--set", "train.steps=12", "--set", "train.log_every=1")


def index(folder: Path) -> Path:
    """Packages that stand in for TensorFlow."""
    return wheels.wheel(folder / "index", "tensorflow_cpu", {"tensorflow/__init__.py": ""}, "2.21.0").parent


def pip_file(home: Path, packages: Path) -> None:
    """Let pip on the host find its packages in a folder only."""
    path = home / ".config" / "pip" / "pip.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[global]\nno-index = true\nfind-links = {packages}\n")


def test_a_launch_says_which_environment_to_build(newcomer: Camp, sshd: Sshd) -> None:
    newcomer.add(sshd)
    words = ("launch", "gpt-tiny", "--on", "box", "--strategy", "horovod", "--json")
    refused = newcomer.run(*words, "--set", f"run.python={sys.executable}", code=1).json["error"]
    assert refused["code"] == "no-package"
    assert refused["message"] == f"box: {sys.executable} has no horovod, which strategy horovod needs"
    assert refused["hint"].startswith(
        f"encamp env build horovod --on box --python {sys.executable}, and leave "
    )
    assert not list((sshd.home / ".encamp").glob("runs/*"))


def test_what_was_built_is_listed_and_found(newcomer: Camp, sshd: Sshd, tmp_path: Path) -> None:
    newcomer.add(sshd)
    pip_file(sshd.home, index(tmp_path))
    assert newcomer.run("env", "list", "--on", "box").out == b"no environments were built there yet\n"
    build = ("env", "build", "tensorflow", "--on", "box", "--python", sys.executable)
    first = newcomer.run(*build)
    assert "Successfully installed tensorflow_cpu-2.21.0" in first.err.replace("-cpu", "_cpu")
    assert first.out.decode().startswith("box: tensorflow 2.21.0 built: ")
    again = newcomer.run(*build, "--json").json["hosts"]["box"]
    assert (again["fresh"], again["base"], again["packages"]["tensorflow"]) == (
        False,
        sys.executable,
        "2.21.0",
    )
    (listed,) = newcomer.run("env", "list", "--on", "box", "--json").json["hosts"]["box"]
    assert (listed["python"], listed["recipe"], listed["state"]) == (
        again["python"],
        "tensorflow",
        "complete",
    )
    assert b"tensorflow 2.21.0" in newcomer.run("env", "list", "--on", "box").out
    script = tmp_path / "script.py"
    script.write_text("import tensorflow, os; print(tensorflow.__file__, os.environ['RANK'])\n")
    profile = tmp_path / "tf.toml"
    profile.write_text(f"[run]\nscript = '{script}'\nstrategy = 'tf-mirrored'\n")
    run = newcomer.run("launch", str(profile), "--on", "box", "--json").json
    assert (run["world_size"], newcomer.run("wait", run["run"]).code) == (1, 0)
    (log,) = (sshd.home / ".encamp" / "runs" / run["run"]).glob("attempts/1/rank0.log")
    said = log.read_text().split()
    assert said[1] == "0"
    assert "tensorflow/__init__.py" in said[0]


def test_a_build_that_fails_says_why(newcomer: Camp, sshd: Sshd, tmp_path: Path) -> None:
    newcomer.add(sshd)
    pip_file(sshd.home, tmp_path)
    failed = newcomer.run(
        "env", "build", "tensorflow", "--on", "box", "--python", sys.executable, "--json", code=1
    )
    assert failed.json["error"]["code"] == "no-env"
    assert "No matching distribution found for tensorflow-cpu" in failed.json["error"]["message"]
    assert "all it said is in " in failed.json["error"]["hint"]
    newcomer.run("env", "build", "mxnet", "--on", "box", code=2)


@pytest.mark.heavy
def test_horovod_end_to_end(newcomer: Camp, sshd: Sshd) -> None:
    python = Path(os.environ.get("ENCAMP_TESTS_HOROVOD", ""))
    if not python.name:
        pytest.skip("ENCAMP_TESTS_HOROVOD names no Python with Horovod")
    newcomer.add(sshd)
    # As if it had been built there: the environments of this host are those of the tests.
    (sshd.home / ".encamp" / "envs").symlink_to(python.parents[2])
    launch = ("launch", "gpt-tiny", "--on", "box", "--strategy", "horovod", "--nproc-per-node", "2", "--json")
    run = newcomer.run(*launch, *TRAINER).json["run"]
    wait_until(lambda: newcomer.status(run)["state"] == "finished", 120, "it trains to its end")
    folder = sshd.home / ".encamp" / "runs" / run
    log = (folder / "attempts" / "1" / "rank0.log").read_text()
    assert "horovod on 2 ranks" in log
    assert "finished after step 12" in log
    restarted = newcomer.run(*launch, *TRAINER, "--set", "train.steps=100000").json["run"]
    wait_until(lambda: "step " in newcomer.run("logs", restarted).out.decode(), 60, "it trains")
    newcomer.run("stop", restarted)
    status = newcomer.status(restarted)
    assert (status["state"], status["reason"].startswith("stopped by ")) == ("stopped", True)

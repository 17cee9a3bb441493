"""A run that needs a secret and a package: it has both, and the secret is nowhere but in its ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import wheels
from e2e.camp import Camp
from ssh.sshd import Sshd
from waiting import wait_until

from agent import process

pytestmark = [pytest.mark.sshd, pytest.mark.torch, pytest.mark.slow]

VALUE = "s3cret-value-nobody-may-see"

SCRIPT = """
import os, time
print(sum(map(ord, os.environ["TOKEN"])), sum(map(ord, os.environ["FILE_TOKEN"])), flush=True)
while not os.path.exists(os.environ["GATE"]):
    time.sleep(0.05)
"""

SUM = str(sum(map(ord, VALUE)))


def holders(folder: Path) -> dict[str, str]:
    """Files below `folder` that have the value, and their modes."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and VALUE.encode() in path.read_bytes():
            found[str(path.relative_to(folder))] = oct(path.stat().st_mode & 0o777)
    return found


def command_lines(home: Path) -> list[bytes]:
    """Of all processes of this home."""
    mark = f"ENCAMP_HOME={home}/.encamp".encode()
    lines = []
    for pid in process.pids():
        if mark in process.environ(pid):
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return lines


@pytest.fixture
def profile(newcomer: Camp, tmp_path: Path) -> str:
    newcomer.env["MY_TOKEN"] = VALUE
    (tmp_path / "token").write_text(f"{VALUE}\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    path = tmp_path / "secret.toml"
    path.write_text(
        f"[run]\nscript = '{tmp_path}/script.py'\nnproc_per_node = 2\npython = '{sys.executable}'\n"
        f"[env]\nGATE = '{tmp_path}/gate'\n"
        "[secrets]\nTOKEN = 'env:MY_TOKEN'\nFILE_TOKEN = 'file:~/token'\n"
    )
    return str(path)


def test_a_secret_is_nowhere_but_in_the_ranks(
    newcomer: Camp, sshd: Sshd, profile: str, tmp_path: Path
) -> None:
    newcomer.add(sshd)
    home = sshd.home / ".encamp"
    said = newcomer.run("launch", profile, "--on", "box", "--dry-run").out
    said += newcomer.run("launch", profile, "--on", "box", "--dry-run", "--json").out
    launched = newcomer.run("launch", profile, "--on", "box", "--json")
    run = launched.json["run"]
    log = home / "runs" / run / "attempts" / "1" / "rank1.log"
    wait_until(lambda: log.exists() and log.read_text().split(), 30, "the rank has its secrets")
    assert log.read_text().split() == [SUM, SUM]
    assert holders(home) == {f"runs/{run}/attempts/1/secrets.json": "0o600"}
    lines = command_lines(sshd.home)
    assert len(lines) > 3
    assert VALUE.encode() not in b"".join(lines)
    said += launched.out + newcomer.run("status", "--json").out + newcomer.run("status").out
    said += newcomer.run("profiles", "show", profile, "--json").out

    restarted = newcomer.run("restart", run, "--json")
    log = home / "runs" / run / "attempts" / "2" / "rank0.log"
    wait_until(lambda: log.exists() and log.read_text().split(), 30, "they are sent again")
    assert log.read_text().split() == [SUM, SUM]
    assert holders(home) == {f"runs/{run}/attempts/2/secrets.json": "0o600"}
    said += restarted.out + newcomer.run("logs", run).out

    colleague = Camp(tmp_path / "colleague")
    (tmp_path / "colleague").mkdir()
    colleague.env["MY_TOKEN"] = "hers"
    colleague.add(sshd)
    assert "was not launched from here on these hosts" in colleague.run("restart", run, code=2).err

    (tmp_path / "gate").touch()
    newcomer.run("wait", run)
    wait_until(lambda: holders(home) == {}, 10, "the file is removed with the attempt's end")
    said += newcomer.run("status", "--json").out
    assert VALUE.encode() not in said
    assert holders(tmp_path / "state") == {}


def test_a_secret_that_is_missing_starts_nothing(newcomer: Camp, sshd: Sshd, profile: str) -> None:
    newcomer.add(sshd)
    del newcomer.env["MY_TOKEN"]
    refused = newcomer.run("launch", profile, "--on", "box", "--json", code=2)
    assert "The secret TOKEN is not there: the variable MY_TOKEN is not set here." in refused.err
    assert refused.json["error"]["exit_code"] == 2
    assert not list((sshd.home / ".encamp").glob("runs/*"))


def test_packages_of_a_profile(newcomer: Camp, sshd: Sshd, tmp_path: Path) -> None:
    newcomer.add(sshd)
    wheels.wheel(tmp_path / "index", "tinypkg", {"tinypkg.py": "WORD = 'tiny'\n"}, requires=["torch"])
    (tmp_path / "script.py").write_text("import tinypkg, torch\nprint(tinypkg.WORD, torch.__version__)\n")
    profile = tmp_path / "packages.toml"
    profile.write_text(
        f"[run]\nscript = '{tmp_path}/script.py'\nnproc_per_node = 1\npython = '{sys.executable}'\n"
        "[env_setup]\npackages = ['tinypkg']\n"
        f"pip_args = ['--no-index', '--find-links', '{tmp_path}/index']\n"
    )
    launched = newcomer.run("launch", str(profile), "--on", "box")
    assert "Successfully installed tinypkg-1.0" in launched.err
    (run,) = [entry["id"] for entry in newcomer.run("status", "--json").json["runs"]]
    newcomer.run("wait", run)
    assert newcomer.run("logs", run).out.decode().split()[-2] == "tiny"
    again = newcomer.run("launch", str(profile), "--on", "box", "--json")
    assert "installed" not in again.err
    newcomer.run("wait", again.json["run"])
    spec = json.loads((sshd.home / ".encamp" / "runs" / run / "attempts" / "1" / "spec.json").read_text())
    assert spec["resolved"]["python"].startswith(f"{sshd.home}/.encamp/envs/")
    assert Path(spec["resolved"]["python"]).resolve() == Path(sys.executable).resolve()

"""`encamp diagnose` as a user has it: on a run that hangs, on one that crashed, and what the bundle has."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from e2e.camp import SCRIPTS, Camp
from e2e.cluster import Cluster
from ssh.sshd import Sshd
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(300)]

SLEEPS = SCRIPTS / "sleeps.py"
FIELDS = {
    "run", "attempt", "state", "verdict", "culprits", "confidence", "sentence", "since_seconds", "evidence",
    "ranks",
}  # fmt: skip


def test_a_rank_that_sleeps_is_named_with_its_line_and_bundled(
    newcomer: Camp, box: Sshd, tmp_path: Path
) -> None:
    newcomer.add(box)
    profile = Path(newcomer.profile(SLEEPS, "sleep", "1", grace=1))
    secret = tmp_path / "secret"
    secret.write_text("hunter2-hunter2\n")
    profile.write_text(
        profile.read_text() + f'stall_seconds = 5\n[env]\nOMP_NUM_THREADS = "1"\nAPI_KEY = "abc-12345"\n'
        f'[secrets]\nMY_TOKEN = "file:{secret}"\n'
    )
    run = newcomer.run("launch", str(profile), "--on", "box", "--json").json["run"]
    try:
        wait_until(lambda: newcomer.status(run)["state"] == "stalled", 90, "no alarm")
        target = tmp_path / "evidence.tar.gz"
        told = newcomer.run("diagnose", run, "--json", "--bundle", str(target), code=1).json
        assert set(told) == {*FIELDS, "bundle"}
        assert (told["run"], told["attempt"], told["state"]) == (run, 1, "stalled")
        assert (told["verdict"], told["culprits"]) == ("collective-missing", [1])
        assert "rank 1 on box" in told["sentence"] and "load (sleeps.py:" in told["sentence"]
        assert told["since_seconds"] >= 5 and 0.8 <= told["confidence"] <= 1
        ranks = {rank["rank"]: rank for rank in told["ranks"]}
        assert [rank["host"] for rank in told["ranks"]] == ["box", "box"]
        assert ranks[0]["collective"]["enqueued"] == ranks[1]["collective"]["enqueued"] + 1
        own = [frame for frame in ranks[1]["stack"] if frame["user_code"]]
        assert (own[0]["function"], set(own[0])) == ("load", {"file", "line", "function", "user_code"})

        text = newcomer.run("diagnose", run, code=1)
        assert b"collective-missing: rank 1 on box" in text.out and b"\x1b" not in text.out
        assert b"rank 1 on box, the innermost call first" in text.out
        assert b"> " + str(SLEEPS).encode() in text.out

        assert "--force" in newcomer.run("diagnose", run, "--bundle", str(target), code=2).err
        with tarfile.open(target) as archive:
            files = {
                member.name: file.read()
                for member in archive.getmembers()
                if (file := archive.extractfile(member))
            }
        top = f"{run}-attempt-1"
        assert json.loads(files[f"{top}/diagnosis.json"])["culprits"] == [1]
        assert json.loads(files[f"{top}/box/stall-1.json"])["diagnosis"]["culprits"] == [1]
        assert b"load" in files[f"{top}/box/stacks/rank1.txt"]
        assert json.loads(files[f"{top}/box/spec.json"])["env"]["API_KEY"] == "(removed)"
        assert files[f"{top}/box/rank1.log"].startswith(b"the token is (removed)")
        for name in (
            "README.txt",
            "box/evidence.json",
            "box/host.json",
            "box/events.jsonl",
            "box/launcher.log",
        ):
            assert f"{top}/{name}" in files
        everything = b"".join(files.values())
        assert b"hunter2" not in everything and b"abc-12345" not in everything
    finally:
        newcomer.run("stop", run)
    after = newcomer.run("diagnose", run, "--json").json
    assert (after["state"], after["verdict"], after["culprits"]) == ("stopped", "healthy", [])


def test_who_failed_first_with_its_traceback_on_top(newcomer: Camp, box: Sshd) -> None:
    newcomer.add(box)
    run = newcomer.launch(SLEEPS, "raise", "1", grace=1)
    newcomer.run("wait", run, code=1)
    told = newcomer.run("diagnose", run, "--json", code=1).json
    assert (told["state"], told["verdict"], told["culprits"]) == ("failed", "exited-early", [1])
    assert "ValueError: no sample 8" in told["sentence"]
    text = newcomer.run("diagnose", run, code=1).out.decode()
    assert "rank 1 on box: exit 1, ValueError: no sample 8" in text
    assert 'raise ValueError(f"no sample {step}")' in text
    assert "rank.py" not in text and "elastic" not in text
    assert "(a consequence)" in text

    silent = newcomer.launch(SLEEPS, "exit", "0", grace=1)
    newcomer.run("wait", silent, code=1)
    told = newcomer.run("diagnose", silent, "--json", code=1).json
    assert (told["verdict"], told["culprits"]) == ("exited-early", [0])
    assert "the last words of rank 0:" in newcomer.run("diagnose", silent, code=1).out.decode()
    assert (
        f"There is no attempt 7 of {silent}."
        in newcomer.run("diagnose", silent, "--attempt", "7", code=1).err
    )


def test_two_hosts_and_one_that_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    camp = cluster.camp
    for name in "ab":
        host = cluster.add(name)
        (host.home / "sleeps.py").write_bytes(SLEEPS.read_bytes())
    profile = cluster.profile("sleep", "1", script="sleeps.py")
    run = camp.run("launch", profile, "--on", "a,b", "--json").json["run"]

    def named() -> bool:
        return camp.run("diagnose", run, "--json", code=None).json.get("culprits") == [1]

    wait_until(named, 120, "rank 1 is not named")
    told = camp.run("diagnose", run, "--json", code=1).json
    assert told["verdict"] == "collective-missing" and "rank 1 on b" in told["sentence"]
    assert [(rank["rank"], rank["host"]) for rank in told["ranks"]] == [(0, "a"), (1, "b")]
    cluster.power_cut("b")
    target = tmp_path / "evidence.tar.gz"
    lost = camp.run("diagnose", run, "--json", "--bundle", str(target), code=3)
    assert (lost.json["verdict"], lost.json["culprits"]) == ("host-unreachable", [1])
    assert any("b" in gap for gap in lost.json["bundle"]["missing"])
    assert "not in the bundle" in lost.err and target.exists()
    camp.run("stop", run, code=3)

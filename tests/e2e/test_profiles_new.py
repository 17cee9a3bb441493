"""From nothing to a run on a host: what `encamp profiles new` writes is launched as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from e2e.camp import Camp

pytestmark = [pytest.mark.sshd, pytest.mark.torch]


@pytest.mark.parametrize("example", ["regression", pytest.param("gpt", marks=pytest.mark.slow)])
def test_a_new_profile_is_launched_as_it_is(camp: Camp, tmp_path: Path, example: str) -> None:
    name = f"new-{example}"
    words = ("profiles", "new", name, "--example", example, "--job", str(tmp_path / "my_job.py"), "--json")
    made = camp.run(*words).json
    assert made["launch"] == f"encamp launch {name} --on HOST"
    settings = {
        "run.python": sys.executable,
        "run.nproc_per_node": "2",
        "env.OMP_NUM_THREADS": "1",
        "train.steps": "40",
        "train.eval_every": "40",
    }
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run = camp.run("launch", name, "--on", "box", *given, "--json").json["run"]
    assert camp.run("wait", run, "--timeout", "55", "--json").json["state"] == "finished"
    log = camp.run("logs", run, "--rank", "1").out.decode()
    assert "ddp on 2 ranks" in log
    assert "evaluation after step 40" in log
    losses = [
        float(line.split("loss ")[1].split()[0]) for line in log.splitlines() if line.startswith("step")
    ]
    assert losses[-1] < 0.9 * losses[0]

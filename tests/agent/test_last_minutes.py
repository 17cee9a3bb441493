"""A real rank that grows and is aborted: how, and what its log says, is known when it is over."""

from __future__ import annotations

import json
from pathlib import Path

from agent_client import AgentHost
from waiting import wait_until

from agent import telemetry, typed
from agent.diagnosis import Evidence, diagnose

SCRIPT = """
import os, sys, time
if os.environ["RANK"] == "1":
    kept = []
    for _ in range(12):
        kept.append(b"x" * (20 << 20))
        time.sleep(0.25)
    print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr)
    print("  what():  std::bad_alloc", file=sys.stderr, flush=True)
    os.abort()
time.sleep(60)
"""


def test_how_memory_grew_and_the_last_words_of_a_rank_that_aborted(
    one_host: AgentHost, tmp_path: Path
) -> None:
    script = tmp_path / "grow.py"
    script.write_text(SCRIPT)
    viewer = one_host.connect()
    spec = {**one_host.spec("run-1", grace=1.0), "target": str(script)}
    viewer.request("launch", spec=spec, actor="ann", timeout=60)
    viewer.until_run("run-1", "failed")
    kept = one_host.attempt_dir("run-1") / telemetry.FILE
    wait_until(kept.exists)
    found = typed.from_json(Evidence, viewer.request("evidence", run="run-1")["evidence"])
    rank = found.ranks[1]
    assert rank.last_words == "std::bad_alloc"
    assert rank.memory[-1].rss_bytes > rank.memory[0].rss_bytes + (60 << 20)
    limit = found.hosts[0].memory_limit_bytes
    assert limit is not None and limit > 0
    told = diagnose(found)
    assert (told.verdict, told.culprits) == ("out-of-memory", (1,))
    assert "grew from " in told.sentence and "the limit is " in told.sentence
    tables = json.loads(kept.read_text())
    assert tables["host"]["rows"] and set(tables["ranks"]) == {"0", "1"}

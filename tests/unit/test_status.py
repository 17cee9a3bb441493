"""The JSON of `encamp status`: the fields that scripts rely on, whatever is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent import wire
from tui.fleet import memory, status
from tui.fleet.store import Link, Store

HOST_FIELDS = {"name", "address", "state", "since", "agent", "gpus", "cpu", "runs"}
RUN_FIELDS = {"id", "state", "strategy", "attempt", "hosts", "world_size", "started", "ranks"}
RANK_FIELDS = {
    "rank", "local_rank", "host", "state", "pid", "step", "step_seconds", "rss_bytes", "age_seconds",
    "exit_code",
}  # fmt: skip


def sample(gpus: int = 1) -> wire.Sample:
    return wire.Sample(
        time=100.0,
        monotonic=5.0,
        cpu=wire.CpuSample(8, 4.0, 12.5, 0.1, 0.2, 0.3),
        memory=wire.MemorySample(1, 2, False),
        shm=None,
        disk=None,
        network=wire.NetworkSample(None, None),
        gpu=wire.GpuStatus(
            "ok", "", 100.0, "550", tuple(wire.GpuSample(i, f"G{i}", "X", "ok") for i in range(gpus))
        ),
        agent=wire.AgentCost(0.5, 20_000_000),
    )


def run_info(run: str, state: str, started: float) -> wire.Run:
    return wire.Run(
        run, run, "p", "ddp", 2, state, "", 1.0, started, None, 2, 2, "/py", ("/py", "x"), "/home"
    )


@pytest.fixture
def store() -> Store:
    store = Store()
    store.add_host("a", "root@a")
    store.add_host("b", "root@b")
    store.set_link("a", Link.LIVE)
    store.apply(
        "a",
        wire.Hello(1, 0, "0.1.0", "f" * 64, "id", "boot", "vm", "root", "/r/.encamp", "/py", 7, 90.0, 80.0),
    )
    store.apply("a", sample())
    store.apply("a", run_info("old", "finished", 10.0))
    store.apply("a", run_info("new", "running", 20.0))
    ranks = tuple(wire.RankSample(r, r, "running", pid=10 + r, step=5 - r, rss_bytes=9) for r in (1, 0))
    training = wire.Training("fsdp+tp", "bf16", ranks=4, mesh_data=2, mesh_tensor=2)
    store.apply("a", wire.Ranks("new", 2, 100.0, ranks, training))
    store.apply("a", wire.Ready())
    return store


def test_every_documented_field_is_there(store: Store) -> None:
    document = json.loads(json.dumps(status.document(store), allow_nan=False))
    assert set(document) == {"hosts", "runs"}
    for host in document["hosts"]:
        assert set(host) >= HOST_FIELDS
        assert set(host["agent"]) >= {"version", "cpu_percent", "rss_bytes"}
    a, b = document["hosts"]
    assert (a["name"], a["address"], a["state"], a["runs"]) == ("a", "root@a", "live", ["new", "old"])
    assert a["agent"] | {"version": "0.1.0", "cpu_percent": 0.5, "rss_bytes": 20_000_000} == a["agent"]
    assert a["gpus"][0]["uuid"] == "G0"
    assert a["cpu"]["percent"] == 12.5
    assert (b["state"], b["gpus"], b["cpu"], b["agent"]["version"]) == ("idle", [], {}, None)
    assert [run["id"] for run in document["runs"]] == ["new", "old"], "newest first"
    new = document["runs"][0]
    assert set(new) >= RUN_FIELDS
    assert (new["state"], new["attempt"], new["hosts"], new["world_size"]) == ("running", 2, ["a"], 2)
    assert new["nodes"] == [
        {"host": "a", "node_rank": 0, "state": "running", "reason": "", "address": None, "interface": None}
    ]
    assert (new["missing"], new["leftovers"], new["code"]) == ([], [], "")
    assert new["training"] | {"strategy": "fsdp+tp", "mesh_tensor": 2, "steps": None} == new["training"]
    assert document["runs"][1]["training"] is None
    assert new["step"] == 4, "the step that all ranks have reached"
    assert [rank["rank"] for rank in new["ranks"]] == [0, 1]
    assert all(set(rank) >= RANK_FIELDS for rank in new["ranks"])
    assert new["ranks"][0]["age_seconds"] < 5


def names(value: object) -> set[str]:
    """Every field name in a JSON document."""
    if isinstance(value, dict):
        return set(value).union(*map(names, value.values()))
    return set().union(*map(names, value)) if isinstance(value, list) else set()


def test_every_field_is_documented(store: Store) -> None:
    text = (Path(__file__).parents[2] / "docs" / "scripting.md").read_text()
    fields = names(status.document(store)) - {"receive_bytes_per_second", "transmit_bytes_per_second"}
    assert {name for name in fields if f'"{name}"' not in text} == set()


@pytest.mark.parametrize("link", list(Link))
def test_states_of_hosts_are_single_words(store: Store, link: Link) -> None:
    store.set_link("a", link)
    state = status.document(store)["hosts"][0]["state"]
    assert state == state.strip().lower()
    assert " " not in state


def test_a_live_run_on_a_silent_host_is_unreachable_and_an_ended_one_keeps_its_end(store: Store) -> None:
    store.set_link("a", Link.UNREACHABLE)
    assert [run["state"] for run in status.document(store)["runs"]] == ["unreachable", "finished"]


def test_what_was_seen_last_is_remembered(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_STATE_DIR", str(tmp_path))
    memory.remember(store.hosts["a"])
    memory.rename("a", "c")
    fresh = Store()
    fresh.add_host("c", "root@a")
    fresh.set_link("c", Link.UNREACHABLE)
    memory.recall(fresh, "c")
    assert {run["id"]: run["state"] for run in status.document(fresh)["runs"]} == {
        "new": "unreachable",
        "old": "finished",
    }
    for path in tmp_path.rglob("*.json"):
        path.write_text('{"runs": [{"run": "../x"}]}')
    fresh = Store()
    fresh.add_host("c", "")
    memory.recall(fresh, "c")
    assert not fresh.hosts["c"].runs, "what does not validate is dropped"
    memory.forget("c")
    memory.forget("c")
    assert not list(tmp_path.rglob("*.json"))

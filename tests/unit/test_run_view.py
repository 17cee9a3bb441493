"""A run put together from what its hosts tell of it: one state, one reason, global ranks."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from agent import wire
from tui.fleet import memory, status
from tui.fleet.store import Link, RunView, Store

NODES = tuple(wire.Node(name, f"id-{name}", f"10.0.0.{n}", "eth0") for n, name in enumerate("abc"))


def hello(host: str, at: float | None = None) -> wire.Hello:
    now = time.time() if at is None else at
    return wire.Hello(1, 1, "0.1.0", "b", f"id-{host}", "boot", host, "root", "/h", "py", 1, now, now)


def part(
    rank: int,
    state: str = "running",
    *,
    attempt: int = 1,
    nodes: tuple[wire.Node, ...] = NODES[:2],
    reason: str = "",
    run: str = "r",
    started: float = 1.0,
    ended: float | None = None,
    exit_code: int | None = None,
) -> wire.Run:
    if ended is None and state in wire.END_STATES:
        ended = 9.0
    size = 2 * max(1, len(nodes))
    return wire.Run(
        run, run, "p", "ddp", attempt, state, reason, 1.0, started, ended, size, 2, "py", ("x",), "/",
        exit_code, nodes, rank,
    )  # fmt: skip


class Fleet:
    """A store with live hosts."""

    def __init__(self, *hosts: str) -> None:
        self.store = Store()
        for host in hosts:
            self.store.add_host(host, f"root@{host}")

    def told(self, host: str, *runs: wire.Run, as_machine: str = "") -> None:
        """The host connects and tells of all its runs."""
        self.store.apply(host, hello(as_machine or host))
        for run in runs:
            self.store.apply(host, run)
        self.store.apply(host, wire.Ready())
        self.store.set_link(host, Link.LIVE)

    @property
    def run(self) -> RunView:
        found = self.store.find_run("r")
        assert found is not None
        assert self.store.runs() == [found]
        return found


def two(first: wire.Run, second: wire.Run) -> RunView:
    fleet = Fleet("a", "b")
    fleet.told("a", first)
    fleet.told("b", second)
    return fleet.run


def test_parts_stand_in_the_order_of_node_ranks() -> None:
    fleet = Fleet("b", "c", "a")
    for rank, name in ((1, "b"), (2, "c"), (0, "a")):
        fleet.told(name, part(rank, nodes=NODES))
    run = fleet.run
    assert run.hosts == ("a", "b", "c")
    assert [host.name for host, _ in run.parts] == ["a", "b", "c"]
    assert run.info.node_rank == 0
    assert (run.state, run.reason, run.live, run.missing, run.leftovers) == ("running", "", True, (), ())


def test_ranks_are_global_and_say_where_they_are() -> None:
    fleet = Fleet("a", "b")
    fleet.told("a", part(0))
    fleet.told("b", part(1))
    for host, numbers, step in (("b", (2, 3), 5), ("a", (0, 1), 7)):
        ranks = tuple(
            wire.RankSample(n, n % 2, "running", step=step, step_seconds=step / 10) for n in numbers
        )
        fleet.store.apply(host, wire.Ranks("r", 1, 10.0, ranks))
    fleet.store.apply("b", wire.Progress("r", 1, 2, ({"step": 5, "loss": 2.0},)))
    run = fleet.run
    assert [(number, rank.host) for number, rank in run.ranks.items()] == [
        (0, "a"),
        (1, "a"),
        (2, "b"),
        (3, "b"),
    ]
    assert run.step == 5, "what all ranks have reached"
    assert run.pace.last == pytest.approx(1 / 0.7), "the slowest counts"
    assert run.progress_rank == 2
    fleet.store.apply("a", wire.Progress("r", 1, 0, ({"step": 7, "loss": 1.0},)))
    assert (run.progress_rank, run.progress[-1]["loss"]) == (0, 1.0)
    for number, host in ((0, "a"), (3, "b"), (-1, "a"), (-2, "b")):
        found = run.part_of(number)
        assert found is not None
        assert found[0].name == host
    assert run.part_of(4) is None


@pytest.mark.parametrize(
    ("first", "second", "state", "live"),
    [
        ("finished", "finished", "finished", False),
        ("finished", "stopped", "stopped", False),
        ("stopped", "failed", "failed", False),
        ("failed", "running", "failed", True),
        ("stopping", "running", "stopping", True),
        ("stopped", "stopping", "stopping", True),
        ("stopped", "running", "stopping", True),
        ("starting", "running", "starting", True),
        ("finished", "running", "running", True),
        ("stalled", "running", "stalled", True),
        ("stalled", "starting", "stalled", True),
    ],
)
def test_one_state_for_all(first: str, second: str, state: str, live: bool) -> None:
    for one, other in ((first, second), (second, first)):
        run = two(part(0, one), part(1, other))
        assert (run.state, run.live) == (state, live)


def test_the_host_that_failed_first_is_named() -> None:
    run = two(
        part(0, "failed", reason="rank 0 ended with exit code 1.", ended=9.0, exit_code=1),
        part(1, "failed", reason="rank 3 was killed: out of memory.", ended=8.0, exit_code=137),
    )
    assert run.reason == "b: rank 3 was killed: out of memory."
    assert run.exit_code == 137
    assert run.ended == pytest.approx(9.0, abs=0.5)


def test_clocks_that_differ_do_not_change_who_failed_first() -> None:
    fleet = Fleet("a", "b")
    fleet.told("a", part(0, "failed", reason="second", ended=time.time() - 5))
    fleet.told("b", part(1, "failed", reason="first", ended=time.time() + 3600 - 10))
    fleet.store.apply("b", hello("b", time.time() + 3600))
    assert fleet.run.reason == "b: first."
    assert fleet.run.ended == pytest.approx(time.time() - 5, abs=1)


def test_ranks_that_outlive_a_failure_elsewhere_are_named() -> None:
    run = two(part(0), part(1, "failed", reason="rank 2 ended with exit code 1."))
    assert run.state == "failed"
    assert run.reason == (
        "b: rank 2 ended with exit code 1. Ranks on a still live: stop the run, or restart it."
    )


def test_a_host_that_cannot_be_asked_makes_a_live_run_unreachable() -> None:
    fleet = Fleet("a", "b")
    fleet.told("a", part(0))
    fleet.told("b", part(1))
    fleet.store.set_link("b", Link.UNREACHABLE, "No route to host.")
    assert (fleet.run.state, fleet.run.reason) == ("unreachable", "b cannot be asked. No route to host.")
    fleet.store.set_link("b", Link.RECONNECTING)
    assert fleet.run.state == "running", "as far as is known"


def test_an_end_as_it_should_be_has_no_reason() -> None:
    run = two(part(0, "finished"), part(1, "finished"))
    assert (run.state, run.reason) == ("finished", "")
    assert two(part(0, "failed"), part(1, "finished")).reason == "a: failed."


def test_a_host_not_heard_of_yet() -> None:
    fleet = Fleet("a", "b")
    fleet.told("a", part(0))
    assert (fleet.run.state, fleet.run.hosts, fleet.run.missing) == ("unreachable", ("a", "b"), ("b",))
    fleet.store.apply("a", part(0, "failed", reason="no peer"))
    assert fleet.run.state == "failed"
    assert fleet.run.reason == "a: no peer. b cannot be asked: whether its ranks have ended is not known."
    fleet.told("b", part(1))
    assert fleet.run.missing == ()
    assert fleet.run.live


def test_a_host_that_is_in_no_list_of_ours_is_named_only() -> None:
    fleet = Fleet("a")
    fleet.told("a", part(0))
    assert (fleet.run.state, fleet.run.hosts, fleet.run.missing) == ("running", ("a", "b"), ("b",))


def test_a_host_that_has_forgotten_the_run() -> None:
    fleet = Fleet("a", "b")
    fleet.told("a", part(0))
    fleet.told("b")
    run = fleet.run
    assert (run.state, run.live) == ("failed", True)
    assert run.reason.startswith("b knows nothing of the run any more. Ranks on a still live")
    fleet.store.apply("a", part(0, started=time.time()))
    assert fleet.run.state == "running", "it may only be slow to tell"
    fleet.store.apply("a", part(0, "finished"))
    assert fleet.run.state == "finished"


def test_another_machine_at_the_address_of_one() -> None:
    fleet = Fleet("a", "b")
    fleet.told("a", part(0))
    fleet.told("b", part(1))
    fleet.told("b", as_machine="new")
    run = fleet.run
    assert run.state == "failed"
    assert run.reason.startswith("b was replaced: another machine answers at its address. Ranks on a still")


def test_another_user_calls_the_hosts_otherwise() -> None:
    fleet = Fleet("x", "y")
    fleet.told("x", part(0), as_machine="a")
    fleet.told("y", as_machine="b")
    assert fleet.run.hosts == ("x", "y")
    assert fleet.run.reason.startswith("y knows nothing of the run any more")


def test_only_the_newest_attempt_counts() -> None:
    fleet = Fleet("a", "b")
    fleet.told("a", part(0, attempt=2, nodes=()))
    fleet.told("b", part(1, attempt=1))
    run = fleet.run
    assert (run.attempt, run.hosts, run.state) == (2, ("a",), "running")
    assert [host.name for host, _ in run.parts] == ["a"]
    assert run.leftovers == ("b",)
    fleet.store.apply("b", part(1, "stopped"))
    assert fleet.run.leftovers == ()


def test_a_host_that_stays_at_an_older_attempt() -> None:
    run = two(part(0, attempt=2), part(1, attempt=1))
    assert run.state == "failed"
    assert run.reason.startswith("b is still at attempt 1.")
    assert (run.missing, run.leftovers) == (("b",), ("b",))


def test_two_names_of_one_machine_count_once() -> None:
    fleet = Fleet("old-name", "a", "b")
    fleet.told("a", part(0))
    fleet.told("b", part(1))
    fleet.told("old-name", part(0), as_machine="a")
    assert fleet.run.hosts == ("old-name", "b")
    fleet.store.set_link("old-name", Link.UNREACHABLE)
    assert fleet.run.hosts == ("a", "b"), "the name that answers speaks for it"
    assert len(status.document(fleet.store)["runs"]) == 1


def test_a_name_given_twice_by_hand_is_two_runs() -> None:
    fleet = Fleet("a", "b")
    fleet.told("a", part(0, nodes=(), started=1.0))
    fleet.told("b", part(0, nodes=(), started=2.0))
    assert [run.hosts for run in fleet.store.runs()] == [("b",), ("a",)]
    found = fleet.store.find_run("r")
    assert found is not None
    assert found.hosts == ("b",), "the newest"


def test_the_key_changes_with_what_the_run_shows_only() -> None:
    fleet = Fleet("a", "b")
    fleet.told("a", part(0))
    fleet.told("b", part(1))
    keys = [fleet.run.key]
    for change in (
        lambda: fleet.store.apply("b", wire.Ranks("r", 1, 1.0, (wire.RankSample(2, 0, "running"),))),
        lambda: fleet.store.set_link("b", Link.UNREACHABLE),
        lambda: fleet.store.apply("a", part(0, "stopping")),
    ):
        change()
        keys.append(fleet.run.key)
    assert len(set(keys)) == len(keys)
    before, same = fleet.run.key, fleet.run
    fleet.store.count_bad_message("a")
    assert fleet.run.key == before
    assert fleet.run is same, "nothing is put together anew for telemetry"


def test_what_is_remembered_says_which_machine_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_STATE_DIR", str(tmp_path))
    fleet = Fleet("a", "b")
    fleet.told("a", part(0))
    fleet.told("b", part(1))
    memory.remember(fleet.store.hosts["b"])
    fresh = Fleet("a", "b")
    fresh.told("a", part(0))
    memory.recall(fresh.store, "b")
    assert (fresh.run.missing, fresh.run.state) == ((), "unreachable")
    fresh.told("b", as_machine="new")
    assert "b was replaced" in fresh.run.reason


def test_status_tells_of_the_whole_run() -> None:
    run = two(part(0), part(1, "failed", reason="rank 2 is lost.", exit_code=1))
    shape = status.run(run)
    assert (shape["hosts"], shape["state"], shape["exit_code"]) == (["a", "b"], "failed", 1)
    assert shape["reason"].startswith("b: rank 2 is lost.")
    assert shape["ended"] is None


def test_a_run_of_one_host_speaks_without_naming_it() -> None:
    fleet = Fleet("a")
    fleet.told("a", dataclasses.replace(part(0, nodes=()), state="failed", reason="rank 0 is lost."))
    assert (fleet.run.state, fleet.run.reason) == ("failed", "rank 0 is lost.")

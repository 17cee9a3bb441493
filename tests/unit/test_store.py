"""What the store makes of messages: the newest counts, histories are bounded, nothing old passes for new."""

from __future__ import annotations

import time

import pytest

from agent import wire
from tui.fleet.store import HISTORY_SECONDS, PROGRESS_RECORDS, HostView, Link, NodeView, Store


def hello(host_id: str = "h", at: float | None = None) -> wire.Hello:
    now = time.time() if at is None else at
    return wire.Hello(1, 0, "0.1.0", "b", host_id, "boot", "box", "root", "/h", "python3", 1, now, now)


def sample(at: float = 1000.0, cpu: float | None = 5.0, gpus: tuple[wire.GpuSample, ...] = ()) -> wire.Sample:
    return wire.Sample(
        at,
        at,
        wire.CpuSample(8, 8.0, cpu, 0.1, 0.1, 0.1),
        wire.MemorySample(1, 2, False),
        None,
        None,
        wire.NetworkSample(None, None),
        wire.GpuStatus("ok", "", at, gpus=gpus),
        wire.AgentCost(0.1, 1),
    )


def run(name: str = "r", *, attempt: int = 1, state: str = "running", started: float = 1.0) -> wire.Run:
    return wire.Run(
        name, name, "p", "ddp", attempt, state, "", 1.0, started, None, 2, 2, "python3", ("torchrun",), "/"
    )


def rank(number: int, step: int | None = None) -> wire.RankSample:
    return wire.RankSample(number, number, "running", pid=number + 1, step=step)


@pytest.fixture
def store() -> Store:
    store = Store()
    store.add_host("box", "root@h")
    return store


@pytest.fixture
def view(store: Store) -> HostView:
    return store.hosts["box"]


def test_revisions_grow_with_every_change(store: Store, view: HostView) -> None:
    for change in (
        lambda: store.set_link("box", Link.LIVE),
        lambda: store.apply("box", hello()),
        lambda: store.apply("box", sample()),
        lambda: store.apply("box", run()),
        lambda: store.count_bad_message("box"),
        lambda: store.add_host("box", "elsewhere"),
    ):
        before = (store.revision, view.revision)
        change()
        assert store.revision > before[0]
        assert view.revision > before[1]
    before_run = view.runs["r"].revision
    store.apply("box", wire.Ranks("r", 1, 1.0, (rank(0),)))
    assert view.runs["r"].revision > before_run
    assert view.address == "elsewhere"
    assert view.bad_messages == 1


def test_a_run_that_was_removed_there_is_forgotten_here(store: Store, view: HostView) -> None:
    for message in (hello(), run("old"), run("gone"), wire.Ready()):
        store.apply("box", message)
    assert set(view.runs) == {"old", "gone"}
    before = view.revision
    store.apply("box", wire.Removed("gone"))
    assert set(view.runs) == {"old"}
    assert view.revision > before
    store.apply("box", hello())
    assert set(view.runs) == {"old"}, "it has not said yet what it has"
    store.apply("box", run("new"))
    store.apply("box", wire.Ready())
    assert set(view.runs) == {"new"}, "removed while nobody was connected"


def test_runs_that_a_host_has_too_many_of_to_name_them_all_are_kept(store: Store, view: HostView) -> None:
    store.apply("box", run("oldest"))
    store.apply("box", hello())
    for number in range(wire.KNOWN_RUNS):
        store.apply("box", run(f"r{number}"))
    store.apply("box", wire.Ready())
    assert "oldest" in view.runs


def test_messages_of_a_host_that_was_removed_are_ignored(store: Store) -> None:
    store.remove_host("box")
    revision = store.revision
    store.apply("box", sample())
    store.set_link("box", Link.LIVE)
    store.count_bad_message("box")
    store.remove_host("box")
    assert store.revision == revision
    assert store.hosts == {}


def test_since_is_when_the_state_began(store: Store, view: HostView) -> None:
    store.set_link("box", Link.CONNECTING)
    since = view.since
    store.set_link("box", Link.CONNECTING, "message", "hint", 5.0)
    assert (view.since, view.message, view.hint, view.retry_at) == (since, "message", "hint", 5.0)
    store.set_link("box", Link.UNREACHABLE, since=1234.0)
    assert (view.since, view.message, view.retry_at) == (1234.0, "", None)
    store.set_link("box", Link.UNREACHABLE)
    assert view.since == 1234.0
    store.set_link("box", Link.LIVE)
    assert view.since > 1234.0


def test_telemetry_and_its_age(store: Store, view: HostView) -> None:
    assert view.age() is None
    gpus = (wire.GpuSample(0, "u0", "n", "ok", 10.0), wire.GpuSample(1, "u1", "n", "lost", None))
    store.apply("box", sample(gpus=gpus))
    age = view.age(view.received + 2.5)
    assert age == 2.5
    for second in range(HISTORY_SECONDS + 10):
        store.apply("box", sample(2000.0 + second, cpu=float(second)))
    assert len(view.cpu) == HISTORY_SECONDS
    assert view.cpu.last == HISTORY_SECONDS + 9
    assert list(view.gpu_utilization[0].values) == [10.0]
    assert list(view.gpu_utilization[1].values) == [None]


def test_another_machine_at_the_same_address_starts_anew(store: Store, view: HostView) -> None:
    store.apply("box", hello("first"))
    store.apply("box", sample())
    store.apply("box", run())
    store.apply("box", wire.Ready())
    assert view.ready
    store.apply("box", hello("first"))  # reconnected
    assert not view.ready
    assert view.runs
    assert view.sample
    store.apply("box", hello("second"))
    assert not view.runs
    assert view.sample is None
    assert len(view.cpu) == 0


def test_the_clocks_difference(store: Store, view: HostView) -> None:
    store.apply("box", hello(at=time.time() + 100))
    assert view.clock_offset == pytest.approx(100, abs=1)


def test_a_new_attempt_forgets_the_ranks_of_the_old_one(store: Store, view: HostView) -> None:
    store.apply("box", run())
    store.apply("box", wire.Ranks("r", 1, 1.0, (rank(0, 5), rank(1, 4))))
    store.apply("box", wire.Progress("r", 1, 0, ({"step": 5, "loss": 1.0},)))
    shown = view.runs["r"]
    assert shown.step == 4
    assert shown.ranks[0].progress == {"step": 5, "loss": 1.0}
    store.apply("box", run(attempt=2))
    assert (shown.ranks, list(shown.progress), shown.step) == ({}, [], None)
    # What was still on its way from the old attempt changes nothing.
    store.apply("box", wire.Ranks("r", 1, 2.0, (rank(0, 6),)))
    store.apply("box", wire.Progress("r", 1, 0, ({"step": 6},)))
    assert (shown.ranks, list(shown.progress)) == ({}, [])
    store.apply("box", wire.Ranks("unknown", 1, 2.0, (rank(0),)))
    assert list(view.runs) == ["r"]


def test_the_lowest_rank_that_reports_is_the_one_for_the_graphs(store: Store, view: HostView) -> None:
    store.apply("box", run())
    store.apply("box", wire.Progress("r", 1, 1, ({"step": 1},)))
    store.apply("box", wire.Progress("r", 1, 0, ({"step": 1}, {"step": 2})))
    store.apply("box", wire.Progress("r", 1, 1, ({"step": 2},)))
    shown = view.runs["r"]
    assert [record["step"] for record in shown.progress] == [1, 2]
    assert shown.progress_rank == 0
    store.apply(
        "box", wire.Progress("r", 1, 0, tuple({"step": step} for step in range(PROGRESS_RECORDS + 5)))
    )
    assert len(shown.progress) == PROGRESS_RECORDS


def test_what_was_reported_before_comes_before_what_has_come(store: Store, view: HostView) -> None:
    def records(*times: int) -> tuple[wire.Record, ...]:
        return tuple({"time": time, "step": time} for time in times)

    def steps() -> list[wire.Scalar]:
        return [record["step"] for record in view.runs["r"].progress]

    store.apply("box", run())
    store.apply("box", wire.Progress("r", 1, 0, records(8, 9)))
    store.put_history("box", wire.Progress("r", 1, 0, records(1, 4, 8)))
    assert steps() == [1, 4, 8, 9]
    for other in (wire.Progress("r", 2, 0, records(7)), wire.Progress("r", 1, 1, records(7))):
        store.put_history("box", other)
    store.put_history("box", wire.Progress("r", 1, 0, ()))
    store.put_history("elsewhere", wire.Progress("r", 1, 0, records(7)))
    assert steps() == [1, 4, 8, 9]


def test_events_are_kept(store: Store, view: HostView) -> None:
    store.apply("box", wire.Event("r", 1, 1.0, "launched", "me", "text"))  # of a run not known: dropped
    store.apply("box", run())
    for number in range(300):
        store.apply("box", wire.Event("r", 1, float(number), "n", "a", "t"))
    assert len(view.runs["r"].events) == 256
    assert view.runs["r"].events[-1].time == 299.0


def test_runs_of_all_hosts_newest_first(store: Store) -> None:
    store.add_host("other", "o")
    store.apply("box", run("old", started=1.0))
    store.apply("other", run("new", started=3.0))
    store.apply("box", run("middle", started=2.0))
    assert [shown.id for shown in store.runs()] == ["new", "middle", "old"]
    found = store.find_run("new")
    assert found is not None
    assert found.hosts == ("other",)
    assert store.find_run("none") is None


@pytest.mark.parametrize("link", list(Link))
@pytest.mark.parametrize("state", ["running", "failed"])
def test_live_runs_are_unreachable_with_their_host(
    store: Store, view: HostView, link: Link, state: str
) -> None:
    store.apply("box", run(state=state))
    store.set_link("box", link)
    shown: NodeView = view.runs["r"]
    known = link in (Link.LIVE, Link.CONNECTING, Link.INSTALLING, Link.RECONNECTING)
    assert view.run_state(shown) == (state if known or state == "failed" else "unreachable")


def test_messages_that_hold_no_state_change_nothing(store: Store) -> None:
    revision = store.revision
    store.apply("box", wire.log_message("r", 1, "rank0", 0, b"x"))
    store.apply("box", wire.Reply(1, {}))
    assert store.revision == revision

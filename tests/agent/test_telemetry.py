"""The last minutes of a host and its ranks: bounded, written with the attempt, read with care."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent import inquiry, telemetry, wire
from agent.attempt import Attempt, Condition
from agent.diagnosis.evidence import Memory

GB = 2**30


def sample(at: float, *gpus: wire.GpuSample) -> wire.Sample:
    return wire.Sample(
        time=at,
        monotonic=at,
        cpu=wire.CpuSample(4, 4.0, 50.0, 0.0, 0.0, 0.0, None),
        memory=wire.MemorySample(3 * GB, 4 * GB, True),
        shm=None,
        disk=None,
        network=wire.NetworkSample(None, None),
        gpu=wire.GpuStatus("ok", "", at, "570", gpus),
        agent=wire.AgentCost(None, 1),
    )


def gpu(**values: Any) -> wire.GpuSample:
    return wire.GpuSample(0, "u", "n", "ok", **values)


def rank(state: str = "running", **values: Any) -> wire.RankSample:
    return wire.RankSample(1, 1, state, **values)


def test_of_old_rows_every_tenth_is_kept() -> None:
    recent = telemetry.Recent()
    for second in range(5000):
        recent.add(float(second), second)
    times = [row[0] for row in recent.rows()]
    assert len(times) < telemetry.FINE + telemetry.COARSE
    assert times == sorted(set(times)), "no moment twice, the newest last"
    assert times[-60:] == [float(second) for second in range(4940, 5000)]
    assert times[0] is not None and 4380 <= times[0] <= 4420
    assert [row[0] for row in recent.rows(3)][-2:] == [4996.0, 4999.0]
    assert telemetry.Recent().rows() == []


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    host, ranks = telemetry.HostRecord(), telemetry.RanksRecord()
    for second in range(100):
        host.add(sample(1000.0 + second, gpu(power_watts=300.0, xids=(wire.Xid(1003.5, 79),))))
        assert not ranks.add(1000.0 + second, [rank(step=second, rss_bytes=second * GB)])
    assert ranks.add(1100.0, [rank("lost")])
    assert not ranks.add(1101.0, [rank("lost")]), "it is told once"
    telemetry.keep(str(tmp_path), host, ranks)
    found = telemetry.kept(str(tmp_path))
    assert telemetry.memory_limit(found) == 4 * GB
    assert list(telemetry.xids_of(found)) == [(0, 1003.5, 79)]
    points = telemetry.memory_of(found, 1)
    assert points[-1] == Memory(1099.0, 99 * GB) and points[-2].time == 1098.0
    assert points[0].time <= 1010.0 and len(points) <= telemetry.MAX_POINTS
    assert telemetry.memory_of(found, 7) == ()
    table = json.loads((tmp_path / telemetry.FILE).read_text())["gpus"]["0"]
    assert dict(zip(table["columns"], table["rows"][-1], strict=True))["power_watts"] == 300.0


def test_many_ranks_take_no_more_room_than_a_file_may(tmp_path: Path) -> None:
    host, ranks = telemetry.HostRecord(), telemetry.RanksRecord()
    every = [
        wire.RankSample(n, n, "running", step=10**6, rss_bytes=10**11, cpu_percent=99.9) for n in range(256)
    ]
    for second in range(700):
        ranks.add(1.7e9 + second, every)
    telemetry.keep(str(tmp_path), host, ranks)
    assert (tmp_path / telemetry.FILE).stat().st_size < 1024 * 1024


def test_a_folder_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    telemetry.keep(str(tmp_path / "gone"), telemetry.HostRecord(), telemetry.RanksRecord())
    assert telemetry.kept(str(tmp_path / "gone")) == {}


ANY = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("01"), inner, max_size=2),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    ranks=st.dictionaries(st.just("1"), st.fixed_dictionaries({"rows": ANY}) | ANY),
    xids=ANY,
    limit=ANY,
)
def test_no_file_is_too_strange(ranks: Any, xids: Any, limit: Any) -> None:
    found = {"ranks": ranks, "xids": xids, "memory_limit_bytes": limit}
    telemetry.memory_of(found, 1)
    list(telemetry.xids_of(found))
    telemetry.memory_limit(found)


@pytest.mark.parametrize(
    ("when", "state", "xid"),
    [
        (Condition("running", "", 1000.0), "lost", 79),
        (Condition("failed", "", 1000.0, ended=1100.0), "ok", 79),
        (Condition("failed", "", 1000.0, ended=1001.0), "", None),
    ],
)
def test_only_what_went_wrong_in_its_time_counts_for_an_attempt(
    when: Condition, state: str, xid: int | None
) -> None:
    live = [wire.GpuSample(0, "u", "n", "lost", xids=(wire.Xid(900.0, 48), wire.Xid(1090.0, 79)))]
    kept = {"xids": {"0": [[1090.0, 79], [1000.5, 31]]}} if xid else {}
    found = inquiry._gpus(when, live, kept)
    assert [(each.state, each.xid) for each in found] == ([(state, xid)] if state else [])


def test_numbers_beyond_all_measure_and_other_digits_count_as_nothing(tmp_path: Path) -> None:
    huge = 10**400
    attempt = Attempt(str(tmp_path), "run", 1)
    Path(attempt.dir).mkdir(parents=True)
    (Path(attempt.dir) / inquiry.RHYTHM).write_text(json.dumps({"usual": huge}))
    assert inquiry.kept_rhythm(attempt) == 0
    kept = {"xids": {"0": [[huge, 48]], "\u00b2": [[1.0, 48]]}, "ranks": {"0": {"rows": [[huge, 1, 1, 1]]}}}
    assert list(telemetry.xids_of(kept)) == []
    assert telemetry.memory_of(kept, 0) == ()
    assert telemetry.memory_limit({"memory_limit_bytes": huge}) is None

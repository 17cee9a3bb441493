"""Verdicts on GPUs: which XIDs are named, what they mean, and of which the program itself is the cause."""

from __future__ import annotations

import dataclasses

import pytest
from test_diagnosis import elsewhere, evidence, user, waiting

from agent.diagnosis import diagnose, xid
from agent.diagnosis.evidence import Gpu, Host, Rank


def failed(gpu: Gpu | None, **more: object) -> Rank:
    end = Rank(1, "b", "exited", exit_code=1, ended=990.0, error_type="RuntimeError", gpu=gpu)
    return dataclasses.replace(end, error_message="CUDA error: unspecified launch failure", **more)  # type: ignore[arg-type]


def test_a_stalled_rank_with_an_xid_names_it_its_gpu_and_its_meaning() -> None:
    found = diagnose(evidence(waiting(0), waiting(1, gpu=Gpu(3, "ok", xid=79, xid_time=960.0))))
    assert (found.verdict, found.culprits) == ("gpu-fault", (1,))
    assert found.sentence == (
        "the GPU of rank 1 on a is faulty: GPU 3: XID 79: the GPU has fallen off the bus, 40 s ago"
    )
    assert (found.evidence[0].rank, found.evidence[0].signal) == (1, "gpu")


def test_the_age_is_by_the_clock_of_the_host() -> None:
    ranks = waiting(0), waiting(1, host="b", gpu=Gpu(3, "lost", xid=79, xid_time=1060.0))
    hosts = Host("a", True), Host("b", True, clock_offset=100.0)
    found = diagnose(evidence(*ranks, hosts=hosts))
    assert found.sentence.endswith("GPU 3 is lost; XID 79: the GPU has fallen off the bus, 40 s ago")


def test_an_xid_of_a_rank_that_makes_progress_is_no_alarm() -> None:
    going = waiting(0, gpu=Gpu(0, "ok", xid=63, xid_time=990.0), step_age=0.1)
    assert not diagnose(evidence(going, waiting(1, step_age=0.1))).alarming


def test_a_rank_that_failed_by_its_gpu_is_named_before_one_that_failed_earlier() -> None:
    first = Rank(0, "a", "exited", exit_code=1, ended=980.0, error_type="ValueError", error_message="odd")
    found = diagnose(evidence(first, failed(Gpu(2, "ok", xid=48, xid_time=985.0))))
    assert (found.verdict, found.culprits) == ("gpu-fault", (1,))
    assert "XID 48: the GPU's memory has an error that cannot be corrected" in found.sentence
    assert [finding.signal for finding in found.evidence] == ["gpu", "exit"]


@pytest.mark.parametrize(
    "gpu",
    [
        None,
        Gpu(2, "ok"),
        Gpu(2, "ok", xid=31, xid_time=985.0),
        Gpu(2, "ok", xid=45, xid_time=985.0),
        Gpu(2, "ok", xid=9999, xid_time=985.0),
        Gpu(2, "ok", xid=63, xid_time=100.0),
    ],
)
def test_a_mistake_of_the_program_or_an_old_error_is_not_blamed_on_the_gpu(gpu: Gpu | None) -> None:
    found = diagnose(evidence(failed(gpu)))
    assert (found.verdict, found.culprits) == ("exited-early", (1,))
    told = [finding.text for finding in found.evidence if finding.signal == "gpu"]
    assert bool(told) == (gpu is not None and gpu.xid in (31, 9999, 63))


def test_of_several_xids_the_gravest_is_told() -> None:
    assert xid.worst([]) is None
    assert xid.worst([(1.0, 79), (2.0, 31), (3.0, 45)]) == (1.0, 79)
    assert xid.worst([(1.0, 31), (2.0, 45)]) == (1.0, 31)
    assert xid.worst([(1.0, 94), (2.0, 31)]) == (1.0, 94)
    assert xid.worst([(1.0, 48), (2.0, 79)]) == (2.0, 79)


def test_which_hosts_are_to_be_left() -> None:
    assert all(xid.is_fatal(number) for number in (48, 63, 64, 74, 79, 95, 119))
    assert not any(xid.is_fatal(number) for number in (13, 31, 43, 45, 68, 94, 109, 9999))
    assert xid.words(9999) == "XID 9999"


@pytest.mark.parametrize("gpu", [Gpu(0, "ok", xid=94, xid_time=100.0), Gpu(0, "ok", xid=45, xid_time=995.0)])
def test_an_xid_after_which_training_went_on_holds_nobody_up(gpu: Gpu) -> None:
    found = diagnose(evidence(waiting(0, gpu=gpu), elsewhere(1, user("step", 7, "time.sleep(60)"))))
    assert (found.verdict, found.culprits) == ("collective-missing", (1,))

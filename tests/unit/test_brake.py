"""The brake of `encamp watch`: restarts go on while they bring something."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tui.fleet.brake import Brake, Trouble


def refusals(troubles: Sequence[Trouble], max_restarts: int = 100) -> list[str]:
    """What the brake says to each, when every restart that it allows is done."""
    brake = Brake(max_restarts)
    said = []
    for trouble in troubles:
        said.append(brake.consider(trouble))
        if said[-1]:
            break
        brake.restarted()
    return said


def test_progress_by_steps_or_checkpoints_lets_it_go_on() -> None:
    by_step = [Trouble(f"dead train.py:{n}", 100 + n, None) for n in range(20)]
    by_checkpoint = [Trouble("dead train.py:3", 150, 100 * n) for n in range(20)]
    assert refusals(by_step) == refusals(by_checkpoint) == [""] * 20


@pytest.mark.parametrize("step", [None, 0, 57])
@pytest.mark.parametrize("checkpoint", [None, 50])
def test_two_restarts_without_any_progress_are_enough(step: int | None, checkpoint: int | None) -> None:
    troubles = [Trouble(f"failure {n}", step, checkpoint) for n in range(9)]
    said = refusals(troubles)
    assert said == ["", "", "2 restarts in a row brought no new checkpoint and no new step"]


def test_going_back_is_no_progress_and_a_new_record_counts_anew() -> None:
    steps = [100, 90, 101, 101, 95]
    said = refusals([Trouble(f"failure {n}", step, None) for n, step in enumerate(steps)])
    assert said[:4] == [""] * 4
    assert "2 restarts in a row" in said[4]


def test_the_same_failure_that_comes_back_twice_stops_it_though_steps_were_made() -> None:
    said = refusals([Trouble("dead ValueError train.py:31", 100 + n, 50) for n in range(9)])
    assert said == ["", "", "the same has happened 3 times: dead ValueError train.py:31"]
    other = [Trouble(word, 100 + n, 50) for n, word in enumerate("abababab")]
    assert refusals(other) == [""] * 8
    unknown = [Trouble("", 100 + n, 50) for n in range(8)]
    assert refusals(unknown) == [""] * 8, "what is not known is not the same"


def test_there_is_a_limit() -> None:
    troubles = [Trouble(f"failure {n}", n, n) for n in range(9)]
    assert refusals(troubles, 3) == ["", "", "", "it was restarted 3 times, the limit"]
    assert refusals(troubles, 1) == ["", "it was restarted once, the limit"]
    assert len(refusals(troubles, 0)) == 1
    assert refusals(troubles, 0)[0]


def test_a_stall_that_went_by_and_a_person_who_restarts_do_not_count() -> None:
    brake = Brake(100)
    trouble = Trouble("stopped train.py:1", 10, None)
    for _ in range(5):
        assert brake.consider(trouble) == "", "nothing was restarted"
    for _ in range(2):
        brake.restarted()
        brake.somebody_else_acted()
        assert brake.consider(trouble) == ""
    brake.restarted()
    assert brake.consider(trouble) == ""
    brake.restarted()
    assert brake.consider(trouble) != ""

"""Where a diagnosis shows a rank among its collectives, when it has called them in several process groups."""

from __future__ import annotations

from agent.diagnosis import diagnose
from agent.diagnosis.evidence import Collective, Evidence, Group, Rank


def group(name: str, enqueued: int, completed: int, created: float) -> Group:
    entry = Collective(enqueued, f"gloo:in_{name}", "8 float", created, completed >= enqueued)
    return Group(name, f"group {name}", (0, 1), enqueued, completed, (entry,))


def shown(*ranks: tuple[Group, ...]) -> list[str]:
    """What is shown of each rank that has called these."""
    looked = tuple(
        Rank(number, "a", "running", step_age=60.0, step=7, process_state="S", recorded=True, groups=groups)
        for number, groups in enumerate(ranks)
    )
    found = diagnose(Evidence("r", 1, 100.0, 2, 1.0, looked, ()))
    positions = [part.collective for part in found.ranks]
    return ["" if each is None else f"{each.completed}/{each.enqueued} {each.name}" for each in positions]


def test_the_group_in_which_it_waits_is_shown_and_not_the_one_that_is_seldom_used() -> None:
    saving = group("saving", 51, 51, 90.0)
    waits = (group("train", 662, 661, 95.0), saving)
    assert shown(waits, (group("train", 661, 661, 94.0), saving)) == [
        "661/662 gloo:in_train",
        "661/661 gloo:in_train",
    ]


def test_where_nobody_waits_it_is_the_one_that_was_used_last() -> None:
    ranks = (group("train", 9, 9, 50.0), group("saving", 3, 3, 60.0))
    assert shown(ranks, tuple(reversed(ranks))) == ["3/3 gloo:in_saving"] * 2

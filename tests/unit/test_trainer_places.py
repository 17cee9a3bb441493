"""Which ranks see the same checkpoint folder, found out by real ranks with folders of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import together

from trainer import places
from trainer.errors import CheckpointError
from trainer.places import Places
from trainer.world import World


def world(rank: int, nodes: str) -> World:
    """Rank `rank`; `nodes` has a letter for each rank, the same for those on the same host."""
    number = sorted(set(nodes)).index(nodes[rank])
    return World(rank=rank, local_rank=0, size=len(nodes), device=torch.device("cpu"), node=number)


def find(rank: int, nodes: str, folders: list[Path], host: str = "") -> Places:
    if host:
        places.socket.gethostname = lambda: host.format(nodes[rank])  # type: ignore[attr-defined]
    return places.find(folders[rank], world(rank, nodes))


def look(rank: int, nodes: str, folders: list[Path], host: str) -> tuple[object, ...]:
    found = find(rank, nodes, folders, host)
    return found.ranks, found.names, found.own, found.leads, found.group is None, found.describe(Path("/c"))


@pytest.mark.parametrize(
    ("nodes", "folders", "ranks", "names", "said"),
    [
        ("aa", "xx", [(0, 1)], ["host-a"], "shared by all 1 hosts"),
        ("ab", "xx", [(0, 1)], ["host-a"], "checkpoints: /c is shared by all 2 hosts"),
        (
            "aabb",
            "xxyy",
            [(0, 1), (2, 3)],
            ["host-a", "host-b"],
            "checkpoints: /c is not shared by the 2 hosts: each keeps whole checkpoints of its own",
        ),
        (
            "abc",
            "xyx",
            [(0, 2), (1,)],
            ["host-a", "host-b"],
            "checkpoints: /c is not shared by all 3 hosts: 2 keep whole checkpoints, host-a and host-b",
        ),
        ("bac", "yxx", [(0,), (1, 2)], ["host-b", "host-a"], "2 keep whole checkpoints, host-b and host-a"),
    ],
)
def test_hosts_that_share_the_folder_are_one_place(
    tmp_path: Path, nodes: str, folders: str, ranks: list[tuple[int, ...]], names: list[str], said: str
) -> None:
    paths = [tmp_path / name / "checkpoints" for name in folders]
    found = together(len(nodes), look, nodes, paths, "host-{}")
    for rank, (their_ranks, their_names, own, leads, alone, text) in enumerate(found):
        assert (their_ranks, their_names) == (ranks, names)
        assert rank in ranks[own]
        assert leads == (ranks[own][0] == rank)
        assert alone == (len(ranks) == 1)
        assert said in text
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "marks were left behind"


def test_hosts_of_one_name_are_told_apart_by_their_node_rank(tmp_path: Path) -> None:
    found = together(2, look, "ab", [tmp_path / "x", tmp_path / "y"], "box")
    assert found[0][1] == ["box (node rank 0)", "box (node rank 1)"]


def test_marks_of_an_attempt_that_was_killed_are_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / ".place-0123-1").touch()
    together(2, look, "ab", [tmp_path / "x", tmp_path / "y"], "host-{}")
    assert list((tmp_path / "x").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_place_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = together(2, look, "ab", [tmp_path / "x", tmp_path / "file" / "y"], "host-{}")
    assert found[1][0] == [(0,), (1,)]


def act(rank: int, folders: list[Path]) -> list[object]:
    found = find(rank, "aab", folders, "host-{}")
    results: list[object] = [found.leaders_do(lambda: rank)]

    def fail() -> None:
        if rank == 2:
            raise OSError("no disk")

    results.append(found.attempt(fail)[1])
    try:
        found.leaders_do(fail)
    except CheckpointError as error:
        results.append(str(error))
    results += [found.hold_all(rank != 0), found.hold_all(rank != 2)]
    return results


def test_what_fails_in_one_place_is_known_in_all(tmp_path: Path) -> None:
    said = together(3, act, [tmp_path / "x", tmp_path / "x", tmp_path / "y"])
    assert said == [[[0, 2], {1: "no disk"}, "host-b: no disk", True, False]] * 3


def test_many_names_are_cut_short() -> None:
    class Named(Places):
        def __init__(self, names: list[str]) -> None:
            self.names = names

    five = Named([f"h{number}" for number in range(5)])
    assert five.named([2]) == "h2"
    assert five.named([0, 3]) == "h0 and h3"
    assert five.named(range(4)) == "h0, h1, h2 and h3"
    assert five.named(range(5)) == "h0, h1, h2 and 2 more"

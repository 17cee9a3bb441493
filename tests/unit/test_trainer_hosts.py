"""Checkpoints of hosts that share no folder: whole on each, all or none, brought to those that lack them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import together
from training import job

from trainer import contract, places, run, saving, strategies, transfer
from trainer.checkpoint import Checkpoints
from trainer.config import parse
from trainer.errors import CheckpointError, UsageError
from trainer.folder import CheckpointFolder, Listing, Position, Record, choose
from trainer.strategies.base import Strategy
from trainer.world import World


class Side:
    """What a rank has: strategy, checkpoints, what they said. `nodes` has for each rank its host's letter."""

    def __init__(self, rank: int, nodes: str, folder: Path, keep: int = 3, background: bool = False) -> None:
        node = sorted(set(nodes)).index(nodes[rank])
        world = World(rank=rank, local_rank=0, size=len(nodes), device=torch.device("cpu"), node=node)
        places.socket.gethostname = lambda: f"host-{nodes[rank]}"  # type: ignore[attr-defined]
        task = contract.load(job("faults"))
        self.strategy: Strategy = strategies.find("ddp")(task, parse([]), world, 1)
        self.said: list[str] = []
        self.background = background
        found = places.find(folder / nodes[rank], world)
        self.checkpoints = Checkpoints(folder / nodes[rank], keep=keep, places=found, say=self.said.append)

    def fill(self, value: float) -> None:
        with torch.no_grad():
            for parameter in self.strategy.model.parameters():
                parameter.fill_(value)

    def save(self, step: int) -> str:
        """Save weights that all are `step`; returns what was wrong."""
        self.fill(step)
        try:
            save = self.checkpoints.save(self.strategy, at(step), background=self.background)
            self.fill(-2)  # as training does while it is written
            save.result()
        except CheckpointError as error:
            return str(error)
        return ""

    def resume(self) -> tuple[int, set[float], list[str], str]:
        """The step resumed from, 0 for none; all values among the weights; what was said; what was wrong."""
        self.fill(-1)
        step, wrong = 0, ""
        try:
            newest = self.checkpoints.newest()
            if newest is not None:
                step = newest.step
                self.checkpoints.load(self.strategy, newest)
        except CheckpointError as error:
            wrong = str(error)
        weights = {float(value) for p in self.strategy.model.parameters() for value in p.detach().flatten()}
        return step, weights, self.said, wrong


def at(step: int) -> Position:
    return Position(step=step, samples=step, seed=0, dataset_length=40)


def save(
    rank: int, nodes: str, folder: Path, steps: list[int], groups: bool = True, background: bool = True
) -> list[str]:
    saving.GROUPS_WORK &= groups
    side = Side(rank, nodes, folder, background=background)
    return [side.save(step) for step in steps]


def resume(
    rank: int, nodes: str, folder: Path, groups: bool = True, prepare: Callable[[int], None] | None = None
) -> Any:
    saving.GROUPS_WORK &= groups
    if prepare is not None:
        prepare(rank)
    return Side(rank, nodes, folder).resume()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("groups", [True, False], ids=["as this torch does", "as before 2.7"])
@pytest.mark.parametrize("background", [True, False], ids=["while training goes on", "while it waits"])
def test_every_host_has_a_whole_checkpoint_and_any_host_can_go_on_alone(
    tmp_path: Path, groups: bool, background: bool
) -> None:
    assert together(4, save, "aabb", tmp_path, [2, 4, 6, 8], groups, background) == [[""] * 4] * 4
    for host in "ab":
        assert names(tmp_path / host) == ["step-4", "step-6", "step-8"]
        assert together(1, resume, host, tmp_path) == [(8, {8.0}, [], "")]
    again = together(4, resume, "aabb", tmp_path, groups)
    assert again == [(8, {8.0}, [], "")] * 4


def test_a_shared_folder_has_one_checkpoint_of_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    together(2, save, "ab", tmp_path, [2])
    assert names(tmp_path / "a" / "step-2") == [".metadata", "__0_0.distcp", "__1_0.distcp", "complete.json"]
    assert together(2, resume, "ab", tmp_path) == [(2, {2.0}, [], "")] * 2


def test_hosts_that_lack_the_newest_get_it_from_one_that_has_it(tmp_path: Path) -> None:
    together(3, save, "abc", tmp_path, [2, 4])
    shutil.rmtree(tmp_path / "a")  # another machine has taken its place
    (tmp_path / "b" / "step-4" / "complete.json").unlink()  # and this one was cut off in the last moment
    (tmp_path / "b" / "step-9.partial").mkdir()
    resumed = together(3, resume, "abc", tmp_path)
    for step, weights, said, wrong in resumed:
        assert (step, weights, wrong) == (4, {4.0}, "")
        assert said[0] == "step-4 is missing on host-a and host-b: fetching it from host-c"
        assert re.match(r"fetched 0\.\d MB in ", said[1])
    assert names(tmp_path / "a") == ["step-4"]
    assert names(tmp_path / "b") == ["step-2", "step-4"]
    theirs = contents(tmp_path / "c" / "step-4")
    assert contents(tmp_path / "a" / "step-4") == contents(tmp_path / "b" / "step-4") == theirs


def test_more_and_fewer_hosts_go_on_with_the_newest(tmp_path: Path) -> None:
    together(1, save, "b", tmp_path, [2])
    assert [result[:2] for result in together(4, resume, "aabb", tmp_path)] == [(2, {2.0})] * 4
    together(1, save, "a", tmp_path, [4])
    assert [result[:2] for result in together(2, resume, "ab", tmp_path)] == [(4, {4.0})] * 2


def test_incomplete_ones_are_named_with_their_host(tmp_path: Path) -> None:
    together(2, save, "ab", tmp_path, [2, 4])
    for host in "ab":
        (tmp_path / host / "step-4" / "complete.json").unlink()
    ignored = [f"ignoring {tmp_path}/a/step-4 on host-{h}: it was not written to its end" for h in "ab"]
    assert together(2, resume, "ab", tmp_path)[0] == (2, {2.0}, ignored, "")
    for host in "ab":
        shutil.rmtree(tmp_path / host / "step-2")
    line = f"no complete checkpoint in {tmp_path}/a on any of the 2 hosts: starting at step 1"
    assert together(2, resume, "ab", tmp_path)[0] == (0, {-1.0}, [*ignored, line], "")
    for host in "ab":
        shutil.rmtree(tmp_path / host)
    line = f"no checkpoint in {tmp_path}/a on any of the 2 hosts: starting at step 1"
    assert together(2, resume, "ab", tmp_path)[0] == (0, {-1.0}, [line], "")


def test_hosts_that_trained_apart_are_not_mixed(tmp_path: Path) -> None:
    for host in "ab":
        together(1, save, host, tmp_path, [2])
    for step, _, _, wrong in together(2, resume, "ab", tmp_path):
        assert step == 0
        assert wrong.startswith("host-a and host-b hold different checkpoints of step 2: they trained apart")


@pytest.mark.parametrize(
    ("hosts", "file", "said"),
    [
        ("b", ".metadata", "on host-b: .*\nremove it there, and it is fetched from another host"),
        ("b", "__0_0.distcp", "on host-b: .*\nremove it there, and it is fetched from another host"),
        (
            "ab",
            "__0_0.distcp",
            "on any host: .*\nremove it on all of them, and training resumes from the one before it",
        ),
    ],
)
def test_where_a_checkpoint_cannot_be_read_is_told(tmp_path: Path, hosts: str, file: str, said: str) -> None:
    together(2, save, "ab", tmp_path, [2])
    for host in hosts:
        path = tmp_path / host / "step-2" / file
        path.write_bytes(path.read_bytes()[:100])
    for rank, result in enumerate(together(2, resume, "ab", tmp_path)):
        assert re.match(f"{tmp_path}/{'ab'[rank]}/step-2 cannot be read {said}", result[3])


def spread(rank: int, folder: Path) -> str:
    side = Side(rank, "ab", folder)
    side.checkpoints.check(side.strategy)
    type(side.strategy).replica_ranks = property(lambda _: frozenset((0, 1)))  # type: ignore[method-assign,assignment]
    try:
        side.checkpoints.check(side.strategy)
    except UsageError as error:
        return str(error)
    return ""


def test_a_model_that_is_spread_over_hosts_needs_a_shared_folder(tmp_path: Path) -> None:
    for rank, said in enumerate(together(2, spread, tmp_path)):
        assert said == (
            "--strategy ddp spreads the model over the hosts, and they do not share "
            f"{tmp_path}/{'ab'[rank]}: a checkpoint would be in pieces; "
            "set --checkpoint-dir to a folder that all hosts share"
        )
    (tmp_path / "a").mkdir(exist_ok=True)
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "b").symlink_to("a")
    assert together(2, spread, tmp_path) == ["", ""]


def differ(rank: int) -> str:
    world = World(rank=rank, local_rank=0, size=2, device=torch.device("cpu"), node=rank)
    with pytest.raises(UsageError) as error:
        run._agree("number of samples in the dataset", 40 + rank, world)
    return str(error.value)


def test_ranks_that_would_miss_each_other_say_so() -> None:
    assert together(2, differ) == ["number of samples in the dataset: 40 on rank 0 and 41 on rank 1"] * 2


# --- full disks --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB at the folder of host b."""
    folder = tmp_path / "b"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "encamp-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small disk, and here not even root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def save_with_a_filler(rank: int, folder: Path, background: bool) -> list[str]:
    side = Side(rank, "aabb", folder, keep=2, background=background)
    wrong = [side.save(2)]
    filler = folder / "b" / "filler"
    if rank == 3:
        with pytest.raises(OSError, match="No space"), filler.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
    torch.distributed.barrier()
    wrong.append(side.save(4))
    if rank == 3:
        filler.unlink()
    torch.distributed.barrier()
    return [*wrong, side.save(6)]


@pytest.mark.parametrize("background", [True, False], ids=["while training goes on", "while it waits"])
def test_a_full_disk_of_one_host_costs_all_hosts_that_checkpoint_and_no_other(
    tmp_path: Path, small_disk: Path, background: bool
) -> None:
    for rank, (first, full, later) in enumerate(together(4, save_with_a_filler, tmp_path, background)):
        own = tmp_path / "aabb"[rank]
        assert full.startswith(f"{own}/step-4 could not be written: host-b: ")
        assert "No space left on device" in full
        assert (first, later) == ("", "")
    assert names(tmp_path / "a") == names(small_disk) == ["step-2", "step-6"]


def no_check(rank: int) -> None:
    transfer.check = lambda files, free: None


def test_a_disk_that_is_too_small_for_what_is_fetched(tmp_path: Path, small_disk: Path) -> None:
    together(1, save, "a", tmp_path, [2])
    with (tmp_path / "a" / "step-2" / "__0_0.distcp").open("ab") as file:
        file.truncate(10**7)
    for prepare, said in ((None, "host-b: it has 10,0"), (no_check, "host-b: [Errno 28] No space left")):
        for step, _, _, wrong in together(2, resume, "ab", tmp_path, True, prepare):
            assert step == 0
            assert wrong.startswith(f"step-2 could not be fetched from host-a to host-b: {said}")
        assert names(small_disk) == []


# --- on the way --------------------------------------------------------------------------------------------


def small_pieces(rank: int) -> None:
    transfer.PIECE, transfer.PIECES = 1000, 3


def spoil(rank: int) -> None:
    """The second host gets another bit than was sent."""
    small_pieces(rank)
    move = transfer.End.move

    def moved(self: transfer.End, file: transfer.File, piece: memoryview, last: bool) -> None:
        if rank == 2 and file.name.endswith("distcp") and last:
            piece[0] ^= 1
        move(self, file, piece, last)

    transfer.End.move = moved  # type: ignore[method-assign]


def shorten(rank: int) -> None:
    """A file of the first host loses its end while it is read."""
    small_pieces(rank)
    manifest = transfer.manifest

    def listed(path: Path) -> list[transfer.File]:
        files = manifest(path)
        os.truncate(path / files[0].name, 100)
        return files

    transfer.manifest = listed


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (spoil, "host-b: __0_0.distcp was spoiled on its way"),
        (shorten, "host-a: .metadata is shorter than it was"),
    ],
)
def test_what_comes_in_wrong_is_not_kept(tmp_path: Path, prepare: Callable[[int], None], said: str) -> None:
    together(1, save, "a", tmp_path, [2])
    for step, _, _, wrong in together(3, resume, "aab", tmp_path, True, prepare):
        assert (step, wrong) == (0, f"step-2 could not be fetched from host-a to host-b: {said}")
    assert names(tmp_path / "b") == []


def test_a_large_file_and_an_empty_one_come_in_many_pieces(tmp_path: Path) -> None:
    together(1, save, "a", tmp_path, [2])
    (tmp_path / "a" / "step-2" / "large").write_bytes(os.urandom(34_567))
    (tmp_path / "a" / "step-2" / "even").write_bytes(os.urandom(3_000))
    (tmp_path / "a" / "step-2" / "empty").touch()
    assert [result[:2] for result in together(3, resume, "abc", tmp_path, True, small_pieces)] == [
        (2, {2.0})
    ] * 3
    for host in "bc":
        assert contents(tmp_path / host) == contents(tmp_path / "a")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["complete.json", "a b"], "a file of it has an odd name, 'a b'"),
        (["complete.json", "../x"], "a file of it has an odd name, '../x'"),
        (["complete.json", ".."], "a file of it has an odd name, '..'"),
        (["complete.json", ".bashrc"], "a file of it has an odd name, '.bashrc'"),
        (["complete.json", "x\n"], "a file of it has an odd name"),
        (["complete.json", "x", "x"], "its list of files makes no sense"),
        ([".metadata"], "its list of files makes no sense"),
        (["complete.json"] + [f"x{number}" for number in range(11)], r"it has 12 bytes and only 11 are free"),
    ],
)
def test_what_a_host_offers_is_checked(files: list[str], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        transfer.check([transfer.File(name, 1) for name in files], 11)


# --- which one ---------------------------------------------------------------------------------------------


def listing(*steps: int, time: float = 1.0) -> Listing:
    return Listing(complete={step: Record(position=at(step), time=time) for step in steps}, incomplete=())


def test_the_newest_of_any_host_is_chosen() -> None:
    assert choose([listing(), listing()], "ab") is None
    choice = choose([listing(2), listing(2, 4), listing(), listing(4)], "abcd")
    assert choice is not None
    assert (choice.record.position.step, choice.holders, choice.lacking) == (4, (1, 3), (0, 2))
    # That they differ in older ones is no matter.
    assert choose([listing(2), listing(2, 4, time=2.0)], "ab") is not None
    with pytest.raises(CheckpointError, match="a and c hold different checkpoints of step 4"):
        choose([listing(4), listing(2), listing(4, time=2.0)], "abc")


def test_a_marker_that_makes_no_sense_does_not_count(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.prepare(2)
    for text in (
        '{"step": 1e999}',
        "[" * 100_000,
        '{"step": 2, "samples": 1, "seed": 0, "dataset_length": 1}',
    ):
        (folder.of(2) / "complete.json").write_text(text)
        assert folder.listing() == Listing(complete={}, incomplete=(2,))

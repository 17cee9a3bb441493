"""Log files by offset: ranges, followers that skip when they lose ground, and search in slices."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent import logs, wire


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SLICE_BYTES", 7)
    monkeypatch.setattr(logs, "SEARCH_BYTES", 20)


class TestRanges:
    def test_from_an_offset(self, tmp_path: Path) -> None:
        path = write(tmp_path, b"0123456789")
        assert logs.read_range(path, 3, 4) == (3, b"3456", 10)

    def test_a_negative_offset_counts_from_the_end(self, tmp_path: Path) -> None:
        path = write(tmp_path, b"0123456789")
        assert logs.read_range(path, -3, 100) == (7, b"789", 10)
        assert logs.read_range(path, -30, 100) == (0, b"0123456789", 10)

    def test_behind_the_end_there_is_nothing_yet(self, tmp_path: Path) -> None:
        assert logs.read_range(write(tmp_path, b"abc"), 9, 5) == (9, b"", 3)

    def test_at_most_one_chunk(self, tmp_path: Path) -> None:
        path = write(tmp_path, b"x" * (wire.MAX_CHUNK + 5))
        assert len(logs.read_range(path, 0, 10**9).data) == wire.MAX_CHUNK

    def test_a_missing_file_is_empty(self, tmp_path: Path) -> None:
        assert logs.read_range(str(tmp_path / "none"), -5, 5) == (0, b"", 0)
        assert logs.size_of(str(tmp_path / "none")) == 0


class TestFollower:
    def test_sends_what_is_there_and_then_what_comes(self, tmp_path: Path) -> None:
        path = write(tmp_path, b"first ")
        follower = logs.Follower(path, "run", 1, "rank0", 0)
        assert sent(follower) == (0, b"first ")
        assert follower.take() is None
        append(path, b"second")
        assert sent(follower) == (6, b"second")
        follower.close()
        follower.close()

    def test_a_file_that_does_not_exist_yet(self, tmp_path: Path) -> None:
        path = str(tmp_path / "rank0.log")
        follower = logs.Follower(path, "run", 1, "rank0", 0)
        assert follower.take() is None
        append(path, b"now")
        assert sent(follower) == (0, b"now")
        follower.close()

    def test_a_long_backlog_is_sent_whole_while_the_viewer_keeps_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "SKIP_BYTES", wire.MAX_CHUNK)
        data = bytes(range(256)) * (wire.MAX_CHUNK // 256 * 20)
        path = write(tmp_path, data)
        follower = logs.Follower(path, "run", 1, "rank0", 0)
        received = b""
        while len(received) < len(data):
            offset, piece = sent(follower)
            assert offset == len(received)
            received += piece
            if len(data) < 30 * wire.MAX_CHUNK:  # for a while the writer is as fast as we are
                append(path, b"+" * wire.MAX_CHUNK)
                data += b"+" * wire.MAX_CHUNK
        assert received == data
        follower.close()

    def test_a_viewer_that_loses_ground_is_brought_back_to_the_present(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "SKIP_BYTES", 3 * wire.MAX_CHUNK)
        monkeypatch.setattr(logs, "KEEP_BYTES", 1000)
        path = write(tmp_path, b"a" * wire.MAX_CHUNK)
        follower = logs.Follower(path, "run", 1, "rank0", 0)
        sent(follower)
        append(path, b"b" * wire.MAX_CHUNK)
        sent(follower)
        append(path, b"c" * 5 * wire.MAX_CHUNK)
        gap = taken(follower)
        assert gap == wire.Gap("run", 1, "rank0", 2 * wire.MAX_CHUNK, 7 * wire.MAX_CHUNK - 1000)
        assert sent(follower) == (gap.end, b"c" * 1000)
        assert follower.take() is None
        follower.close()

    def test_one_that_had_caught_up_and_then_slept_gets_a_gap_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "SKIP_BYTES", 3 * wire.MAX_CHUNK)
        path = write(tmp_path, b"little")
        follower = logs.Follower(path, "run", 1, "rank0", 0)
        assert sent(follower) == (0, b"little")
        append(path, b"x" * 50 * wire.MAX_CHUNK)
        gap = taken(follower)
        assert isinstance(gap, wire.Gap)
        assert (gap.start, gap.end) == (6, 6 + 50 * wire.MAX_CHUNK - logs.KEEP_BYTES)
        follower.close()


@pytest.mark.usefixtures("small_slices")
class TestSearch:
    def test_forward_and_back(self, tmp_path: Path) -> None:
        path = write(tmp_path, b"one\ntwo needle\nthree\nneedle four\n")
        assert find(path, b"needle", 0) == (8, 4)
        assert find(path, b"needle", 8) == (8, 4)
        assert find(path, b"needle", 9) == (21, 21)
        assert find(path, b"needle", 22) == (None, None)
        assert find(path, b"needle", 33, backward=True) == (21, 21)
        assert find(path, b"needle", 21, backward=True) == (8, 4)
        assert find(path, b"needle", 8, backward=True) == (None, None)

    @pytest.mark.parametrize("start", range(40))
    def test_a_hit_across_any_edge_of_a_slice(self, tmp_path: Path, start: int) -> None:
        path = write(tmp_path, b"." * start + b"needle" + b"." * (40 - start))
        assert find(path, b"needle", 0)[0] == start
        assert find(path, b"needle", 46, backward=True)[0] == start
        assert find(path, b"needle", start + 1, backward=True)[0] == start

    def test_work_per_request_is_bounded_and_goes_on_without_a_hole(self, tmp_path: Path) -> None:
        path = write(tmp_path, b"." * 100 + b"needle" + b"." * 100)
        first = logs.search(path, b"needle", 0)
        assert (first.offset, first.more) == (None, True)
        assert 15 <= first.scanned_to <= 27
        back = logs.search(path, b"needle", 206, backward=True)
        assert (back.offset, back.scanned_to, back.more) == (None, 186, True)

    def test_the_end_of_the_file(self, tmp_path: Path) -> None:
        path = write(tmp_path, b"." * 10)
        found = logs.search(path, b"n", 0)
        assert (found.offset, found.scanned_to, found.more) == (None, 10, False)
        append(path, b"n")
        assert logs.search(path, b"n", found.scanned_to).offset == 10
        assert not logs.search(path, b"x", 11).more
        assert not logs.search(path, b"x", 0, backward=True).more

    def test_case_of_ascii_letters_can_be_ignored(self, tmp_path: Path) -> None:
        path = write(tmp_path, "Loss: NaN äÄ\n".encode())
        assert find(path, b"nan", 0) == (None, None)
        assert find(path, b"NAN", 0, ignore_case=True) == (6, 0)
        assert find(path, b"NAN", 14, backward=True, ignore_case=True) == (6, 0)
        assert find(path, "ä".encode(), 0, ignore_case=True) == (10, 0)

    def test_nothing_is_a_pattern(self, tmp_path: Path) -> None:
        path = write(tmp_path, b"a+b [x] .*\n")
        assert find(path, b".*", 0) == (8, 0)
        assert find(path, b"[x]", 0) == (4, 0)

    def test_a_negative_offset_counts_from_the_end(self, tmp_path: Path) -> None:
        path = write(tmp_path, b"ab ab")
        assert find(path, b"ab", -2) == (3, 0)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        assert logs.search(str(tmp_path / "none"), b"x", 0) == (None, None, 0, False)


def test_the_start_of_a_very_long_line_is_not_looked_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LINE_BYTES", 64 * 1024)
    path = write(tmp_path, b"\n" + b"x" * 300_000 + b"needle")
    assert find(path, b"needle", 0) == (300_001, None)
    assert find(path, b"xneedle", 300_006, backward=True) == (300_000, None)


def write(folder: Path, data: bytes) -> str:
    path = folder / "rank0.log"
    path.write_bytes(data)
    return str(path)


def append(path: str, data: bytes) -> None:
    with Path(path).open("ab") as file:
        file.write(data)


def taken(follower: logs.Follower) -> wire.Message | None:
    line = follower.take()
    return None if line is None else wire.decode(line)


def sent(follower: logs.Follower) -> tuple[int, bytes]:
    message = taken(follower)
    assert isinstance(message, wire.Log), message
    assert message.stream == "rank0"
    return message.offset, wire.payload(message.data)


def find(
    path: str, needle: bytes, offset: int, *, backward: bool = False, ignore_case: bool = False
) -> tuple[int | None, int | None]:
    """Search as a viewer does: on and on until there is a hit or no more."""
    while True:
        found = logs.search(path, needle, offset, backward, ignore_case)
        if found.offset is not None or not found.more:
            return found.offset, found.line_offset
        assert found.scanned_to != offset, "a search that does not advance never ends"
        offset = found.scanned_to

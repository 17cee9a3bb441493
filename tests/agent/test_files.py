"""Small files that writers may leave half-done at any moment, and readers that take them as they are."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import files

VALUES = st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.booleans()))


@given(value=VALUES)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, object]
) -> None:
    path = str(tmp_path_factory.mktemp("x") / "v.json")
    files.write_json(path, value)
    assert files.read_json(path) == value


def test_files_and_folders_are_the_user_s_alone(tmp_path: Path) -> None:
    files.make_dirs(str(tmp_path / "a" / "b"))
    files.make_dirs(str(tmp_path / "a" / "b"))
    files.write_json(str(tmp_path / "a" / "b" / "x.json"), {})
    files.append_json_line(str(tmp_path / "a" / "b" / "x.jsonl"), {})
    assert [oct(path.stat().st_mode & 0o777) for path in sorted(tmp_path.rglob("*"))] == [
        "0o700", "0o700", "0o600", "0o600",
    ]  # fmt: skip
    with pytest.raises(FileExistsError):
        files.make_dirs(str(tmp_path / "a" / "b" / "x.json"))


def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    files.write_json(str(path), {"old": True})
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        f"from agent import files; files.write_json({str(path)!r}, {{'x': 'y' * 5000}})"
    )
    root = Path(files.__file__).parent.parent
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=False)
    assert b"OSError" in ended.stderr
    assert files.read_json(str(path)) == {"old": True}
    assert list(tmp_path.iterdir()) == [path]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"a": 1', b"[1]", b"5", b"null", b"\xff\xfe", b'{"a": ' + b"[" * 100_000]
)  # fmt: skip
def test_what_is_no_object_is_not_there(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    assert files.read_json(str(path)) is None


def test_what_is_missing_a_folder_or_huge_is_not_there(tmp_path: Path) -> None:
    assert files.read_json(str(tmp_path / "gone.json")) is None
    assert files.read_json(str(tmp_path)) is None
    (tmp_path / "huge.json").write_bytes(b'{"a": "' + b"x" * files.MAX_JSON + b'"}')
    assert files.read_json(str(tmp_path / "huge.json")) is None
    assert files.changed_at(str(tmp_path / "gone.json")) == 0.0


def test_lines_are_read_once_and_an_unfinished_one_later(tmp_path: Path) -> None:
    path = str(tmp_path / "x.jsonl")
    assert files.read_json_lines(path) == ([], 0)
    files.append_json_line(path, {"n": 1})
    with Path(path).open("ab") as file:
        file.write(b'{"n": 2}\n{"n":')
    found, at = files.read_json_lines(path)
    assert found == [{"n": 1}, {"n": 2}]
    assert files.read_json_lines(path, at) == ([], at)
    with Path(path).open("ab") as file:
        file.write(b" 3}\n")
    assert files.read_json_lines(path, at) == ([{"n": 3}], at + len(b'{"n": 3}\n'))


def test_damaged_lines_spoil_only_themselves(tmp_path: Path) -> None:
    path = str(tmp_path / "x.jsonl")
    Path(path).write_bytes(
        b'{"n": 1}\n\xff\n[]\n"x"\n' + b'{"n": "' + b"x" * files.MAX_JSON_LINE + b'"}\n{"half'
    )
    files.append_json_line(path, {"n": 2})
    assert files.read_json_lines(path)[0] == [{"n": 1}, {"n": 2}]


@given(records=st.lists(VALUES, max_size=20), limit=st.integers(1, 60))
def test_reading_in_pieces_ends_and_finds_every_line_that_fits(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, object]], limit: int
) -> None:
    path = str(tmp_path_factory.mktemp("x") / "x.jsonl")
    for record in records:
        files.append_json_line(path, record)
    size = Path(path).stat().st_size if records else 0
    found, at, steps = [], 0, 0
    while at < size:
        some, at = files.read_json_lines(path, at, limit)
        found += some
        steps += 1
        assert steps <= size
    lines = [len(json.dumps(record, separators=(",", ":"))) + 1 for record in records]
    if all(length <= limit for length in lines):
        assert found == records

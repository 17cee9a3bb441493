"""Files in the folder of a run, and nothing outside of it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent import browse
from agent.errors import RunError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "run-1"
    (folder / "checkpoints" / "step-1").mkdir(parents=True)
    (folder / "checkpoints" / "step-1" / "model.pt").write_bytes(b"weights")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "runs" / "run-10").mkdir()
    (tmp_path / "runs" / "run-10" / "other").write_text("another run's")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "dir-out").symlink_to(tmp_path)
    (folder / "sibling").symlink_to(tmp_path / "runs" / "run-10")
    (folder / "checkpoints" / "latest").symlink_to("step-1")
    (folder / "best.pt").symlink_to("checkpoints/step-1/model.pt")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../run-10/other", "bad-path"),
        ("checkpoints/../../../secret", "bad-path"),
        ("/etc/passwd", "bad-path"),
        ("x\0y", "bad-path"),
        ("out", "no-file"),
        ("dir-out/secret", "no-file"),
        ("sibling/other", "no-file"),
        ("nothing", "no-file"),
        ("pipe", "no-file"),
        ("best.pt/x", "no-file"),
    ],
)
def test_what_is_not_read(run: Path, path: str, code: str) -> None:
    for function in (browse.read, browse.sha256):
        with pytest.raises(RunError) as refused:
            function(str(run), path, 0, 10) if function is browse.read else function(str(run), path, 10)
        assert refused.value.code == code


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("checkpoints/step-2", "in checkpoints there is latest, step-1"),
        ("checkpoints/step-2/model.pt", "in checkpoints there is latest, step-1"),
        ("nothing", "in its folder there is best.pt, checkpoints, dir-out, out, pipe, sibling"),
        ("sibling/x", "in its folder there is best.pt, checkpoints, dir-out, out, pipe, sibling"),
        ("dir-out/x", "in its folder there is best.pt, checkpoints, dir-out, out, pipe, sibling"),
        ("many/x", "in many there is ..., 2, 3, 4, 5, 6, 7, 8, 9"),
    ],
)
def test_what_there_is_instead(run: Path, path: str, hint: str) -> None:
    for number in range(10):
        (run / "many" / str(number)).mkdir(parents=True)
    with pytest.raises(RunError) as refused:
        browse.find(str(run), path)
    assert refused.value.hint.replace(", many", "") == hint


def test_a_folder_tells_what_each_of_its_entries_is(run: Path) -> None:
    found = browse.entries(str(run), ".", 0)
    assert found["next"] is None
    assert {entry["name"]: (entry["kind"], entry["size"]) for entry in found["entries"]} == {
        "best.pt": ("file", 7),
        "checkpoints": ("folder", 0),
        "dir-out": ("link", 0),
        "out": ("link", 0),
        "pipe": ("other", 0),
        "sibling": ("link", 0),
    }
    inner = browse.entries(str(run), "checkpoints/latest", 0)
    assert [entry["name"] for entry in inner["entries"]] == ["model.pt"], "a link within the run may be named"
    alone = browse.entries(str(run), "best.pt", 0)
    assert alone == {"folder": False, "entries": [{"name": "", "kind": "file", "size": 7}], "next": None}


def test_a_large_folder_comes_in_pages(run: Path) -> None:
    names = [f"{'x' * 200}-{number:04d}" for number in range(500)]
    (run / "many").mkdir()
    for name in names:
        (run / "many" / name).touch()
    found, start, pages = [], 0, 0
    while start is not None:
        page = browse.entries(str(run), "many", start)
        assert len(json.dumps(page)) < 200_000
        found += [entry["name"] for entry in page["entries"]]
        start, pages = page["next"], pages + 1
    assert found == names
    assert pages > 1


def test_ranges_and_hashes(run: Path) -> None:
    assert browse.read(str(run), "best.pt", 2, 3) == b"igh"
    assert browse.read(str(run), "best.pt", 100, 3) == b""
    assert browse.sha256(str(run), "best.pt", 4) == {
        "sha256": hashlib.sha256(b"weig").hexdigest(),
        "length": 4,
    }
    assert browse.sha256(str(run), "best.pt", 99)["length"] == 7


def test_the_command_that_sends_pieces(run: Path) -> None:
    home = run.parents[1]
    asked = [
        ["run-1", "best.pt", 0, 100],
        ["run-1", "best.pt", 3, 2],
        ["run-1", "out", 0, 9],
        ["../runs/run-1", "best.pt", 0, 9],
        ["run-1", "best.pt", 6, 9],
    ]
    done = subprocess.run(
        [sys.executable, "-m", "agent", "send", "abc", str(home)],
        input=b"".join(json.dumps(request).encode() + b"\n" for request in asked),
        capture_output=True,
        check=True,
    )
    assert done.stdout.startswith(b'abc\n7\nweights2\ngh-1 "the run has no')
    assert done.stdout.endswith(b"\n1\ns")
    assert done.stdout.count(b"-1 ") == 2

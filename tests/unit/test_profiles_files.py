"""Profiles as files: the ones that can be named, and the ones that cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from profiles import library, schema
from profiles.errors import ProfileError
from profiles.source import MAX_BYTES

SCRIPT = '[run]\nscript = "train.py"\n'


def complaint(path: Path) -> str:
    with pytest.raises(ProfileError) as caught:
        schema.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message


def test_a_file_is_read_and_settings_are_put_in(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SCRIPT)
    profile = schema.load(path, ["run.nproc_per_node=3"])
    assert (profile.name, profile.file, profile.run.nproc_per_node) == ("mine", str(path), 3)


def test_line_ends_and_byte_order_mark_of_windows_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SCRIPT.replace("\n", "\r\n").encode())
    assert schema.load(path).run.script == "train.py"


def test_a_missing_file(tmp_path: Path) -> None:
    assert "cannot be read: no such file" in complaint(tmp_path / "no.toml")


def test_a_folder(tmp_path: Path) -> None:
    assert "is a directory; a profile is a TOML file" in complaint(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.toml"
    os.mkfifo(path)
    assert "not a regular file" in complaint(path)


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "loop.toml"
    path.symlink_to(path)
    assert "cannot be read: too many levels of symbolic links" in complaint(path)


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "huge.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "over 256 KiB" in complaint(path)


def test_a_file_of_just_the_largest_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    path.write_text(SCRIPT + "#" * (MAX_BYTES - len(SCRIPT)))
    assert schema.load(path).run.script == "train.py"


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b"# first line\n# caf\xe9\n")
    assert "not UTF-8: byte 0xe9 at line 2, column 6" in complaint(path)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.touch()
    assert "must have exactly one of script, module or task; it has none" in complaint(path)


# --- finding -----------------------------------------------------------------------------------------------


def test_the_users_profile_hides_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "gpt.toml").write_text(SCRIPT)
    (tmp_path / "own.toml").write_text(SCRIPT)
    (tmp_path / "notes.txt").write_text("no profile")
    entries = {entry.name: entry for entry in library.available(tmp_path)}
    assert list(entries) == ["gpt", "gpt-tiny", "image-classifier", "own", "regression"]
    assert (entries["gpt"].path, entries["gpt"].shipped) == (tmp_path / "gpt.toml", False)
    assert entries["gpt-tiny"].shipped
    assert library.find("gpt", tmp_path) == tmp_path / "gpt.toml"
    assert library.find("gpt") == library.SHIPPED / "gpt.toml"


def test_a_user_without_a_folder_has_the_shipped_ones(tmp_path: Path) -> None:
    assert library.available(tmp_path / "none") == library.available()


@pytest.mark.parametrize("name", ["./gpt", "sub/x", "x.toml", "/abs/x.toml"])
def test_paths_are_taken_as_they_are(name: str) -> None:
    assert library.find(name) == Path(name)


def test_a_tilde_is_the_users_home() -> None:
    assert library.find("~/x.toml") == Path.home() / "x.toml"


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(
        ProfileError, match=r"profile gpt-tny: no profile of this name; did you mean gpt-tiny\?"
    ):
        library.find("gpt-tny")
    there = r"there are gpt, gpt-tiny, image-classifier, regression\. A file is named by its path"
    with pytest.raises(ProfileError, match=there):
        library.find("zzz")


# --- those that are shipped --------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", library.available(), ids=lambda entry: entry.name)
def test_shipped_profiles_are_right_and_explain_themselves(entry: library.Entry) -> None:
    profile = schema.load(entry.path)
    assert profile.name == entry.name
    assert 20 < len(profile.description) < 80
    lines = entry.path.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert max(map(len, lines)) <= 110
    assert sum(line.startswith("#") for line in lines) >= len(lines) // 5

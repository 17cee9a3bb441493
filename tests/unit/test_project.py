"""What belongs to a project, with git and without, and what is said about what cannot be sent."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from profiles import library
from profiles.schema import load, parse
from tui.fleet import hash_cache, project
from tui.fleet.errors import UsageError
from tui.fleet.project import ProjectTooLarge, biggest, collect, folder_of, leads_inside


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENCAMP_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ENCAMP_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.org")
    return tmp_path / "state"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "my proj"
    folder.mkdir()
    return folder


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout


def paths(folder: Path) -> list[str]:
    return [entry.path for entry in collect(folder).entries]


def test_a_plain_folder_comes_without_junk(here: Path) -> None:
    write(here, "train.py", "pkg/model.py", "env/gym.py", "data/x.bin", ".hidden")
    write(here, "pkg/__pycache__/model.cpython-311.pyc", ".venv/lib.py", "my-env/pyvenv.cfg", "my-env/lib.py")
    write(here, "node_modules/x.js", "wandb/run", "checkpoints/model.pt", ".mypy_cache/x", "x.egg-info/y")
    assert paths(here) == [".hidden", "data/x.bin", "env/gym.py", "pkg/model.py", "train.py"]
    (here / ".encampignore").write_text("# big\ndata/\n!checkpoints/\n*.log\n")
    write(here, "a.log", "pkg/b.log")
    assert paths(here) == [
        ".encampignore", ".hidden", "checkpoints/model.pt", "env/gym.py", "pkg/model.py", "train.py",
    ]  # fmt: skip


def test_git_says_what_belongs_to_a_work_tree(here: Path) -> None:
    git(here.parent, "init", "-q", str(here))
    write(here, "train.py", "gone.py", "sub/kept.py", "wandb/tracked", "ignored.txt", "data/x", "big/y")
    (here / ".gitignore").write_text("ignored.txt\ndata/\n")
    (here / ".encampignore").write_text("big/\n")
    git(here, "add", ".")
    git(here, "commit", "-qm", "first")
    commit = git(here, "rev-parse", "HEAD")[:9]
    assert collect(here).revision == commit
    (here / "gone.py").unlink()
    write(here, "new.py", "sub/new.py", "__pycache__/new.pyc")
    expected = [
        ".encampignore",
        ".gitignore",
        "new.py",
        "sub/kept.py",
        "sub/new.py",
        "train.py",
        "wandb/tracked",
    ]
    assert paths(here) == expected
    assert collect(here).revision == f"{commit} with changes"
    assert paths(here / "sub") == ["kept.py", "new.py"]
    assert collect(here / "sub").name == "sub"


def test_a_repository_without_a_commit(here: Path) -> None:
    git(here, "init", "-q")
    write(here, "train.py")
    assert (paths(here), collect(here).revision) == (["train.py"], "no commit with changes")


def test_submodules_and_repositories_within(here: Path, tmp_path: Path) -> None:
    library_ = tmp_path / "library"
    library_.mkdir()
    git(library_, "init", "-q")
    write(library_, "lib.py", "junk.o")
    (library_ / ".gitignore").write_text("*.o\n")
    git(library_, "add", ".")
    git(library_, "commit", "-qm", "first")
    git(here, "init", "-q")
    write(here, "train.py", "inner/a.py")
    for place in ("deps/lib", "deps/absent"):
        git(here, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library_), place)
    git(here, "commit", "-qm", "first")
    git(here, "submodule", "-q", "deinit", "-f", "deps/absent")
    git(here / "inner", "init", "-q")
    write(here, "deps/lib/more.py", "deps/lib/more.o")
    found = collect(here)
    assert [entry.path for entry in found.entries] == [
        ".gitmodules", "deps/lib/.gitignore", "deps/lib/lib.py", "deps/lib/more.py", "inner/a.py", "train.py",
    ]  # fmt: skip
    assert found.notes == ("deps/absent/ is a submodule that is not checked out",)


def test_a_folder_that_its_repository_ignores_is_taken_as_it_is(here: Path) -> None:
    git(here, "init", "-q")
    (here / ".gitignore").write_text("scratch/\n")
    write(here, "scratch/train.py", "scratch/wandb/x")
    found = collect(here / "scratch")
    assert [entry.path for entry in found.entries] == ["train.py"]
    assert found.revision == ""
    assert "git ignores the whole folder" in found.notes[0]


def test_a_folder_that_has_become_a_link(here: Path) -> None:
    git(here, "init", "-q")
    write(here, "old/a.py", "new/b.py")
    git(here, "add", ".")
    (here / "old" / "a.py").rename(here / "new" / "a.py")
    (here / "old").rmdir()
    (here / "old").symlink_to("new")
    assert [(entry.path, entry.kind) for entry in collect(here).entries] == [
        ("new/a.py", "file"), ("new/b.py", "file"), ("old", "link"),
    ]  # fmt: skip


def test_what_git_does_not_want_to_tell(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / ".git").write_text("gitdir: /nowhere\n")
    with pytest.raises(UsageError, match="git does not say what belongs to"):
        collect(here)
    monkeypatch.setenv("PATH", str(here))
    with pytest.raises(UsageError, match="git is not installed"):
        collect(here)


def test_git_is_asked_about_this_folder_whatever_a_hook_has_set(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(here, "init", "-q")
    write(here, "train.py")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert paths(here) == ["train.py"]


def test_links_stay_links_inside_and_are_left_out_when_they_lead_out(here: Path) -> None:
    write(here, "pkg/a.py")
    (here / "latest").symlink_to("./pkg/")
    (here / "pkg" / "up").symlink_to("../pkg/a.py")
    (here / "out").symlink_to("../elsewhere")
    (here / "absolute").symlink_to("/mnt/data")
    os.mkfifo(here / "pipe")
    found = collect(here)
    assert {entry.path: entry.content for entry in found.entries if entry.kind == "link"} == {
        "latest": "pkg",
        "pkg/up": "../pkg/a.py",
    }
    assert found.notes == (
        "absolute is left out: it leads to /mnt/data, outside the project",
        "out is left out: it leads to ../elsewhere, outside the project",
        "pipe is left out: it is no plain file",
    )


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        ("a", "b", True),
        ("a", ".", True),
        ("a/b", "..", True),
        ("a/b/c", "../../d", True),
        ("a", "..", False),
        ("a/b", "../../c", False),
        ("a", "b/../../c", False),
        ("a", "/etc", False),
        ("a", "", False),
        ("a", "b\n", False),
    ],
)
def test_where_links_may_lead(path: str, target: str, inside: bool) -> None:
    assert leads_inside(path, target) is inside


@pytest.mark.parametrize("name", [b"a\nb", b"a\x1b[2J", b"a\xff", b"a\\b", "a\x9bb".encode()])
def test_names_that_no_host_gets_are_named_and_refused(here: Path, name: bytes) -> None:
    write(here, "train.py")
    Path(os.fsdecode(os.fsencode(here) + b"/" + name)).write_bytes(b"")
    with pytest.raises(UsageError, match="names that a host is not sent") as refused:
        collect(here)
    assert refused.value.message.isprintable()
    assert ascii(os.fsdecode(name)) in refused.value.message


def test_the_same_files_give_the_same_hash(here: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for folder in (here, other):
        write(folder, "train.py", "ünï.py", "pkg/a.py")
    (other / "train.py").chmod(0o600)
    os.utime(other / "train.py", (1, 1))
    one, two = collect(here), collect(other)
    assert one.manifest == two.manifest
    assert one.tree.sha256 == two.tree.sha256 == hashlib.sha256(one.manifest).hexdigest()
    assert (one.tree.name, one.tree.files, one.tree.bytes) == ("my proj", 3, 24)
    assert json.loads(one.manifest)[0] == ["pkg/a.py", "file", 8, hashlib.sha256(b"pkg/a.py").hexdigest()]
    (other / "train.py").chmod(0o700)
    assert collect(other).tree.sha256 != one.tree.sha256


def test_only_what_has_changed_is_read_again(
    here: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, "a", "b", "c")
    for name in "ab":
        os.utime(here / name, (1, 1))
    read: list[str] = []
    sha256: Callable[[str], str] = project._sha256
    monkeypatch.setattr(project, "_sha256", lambda path: (read.append(Path(path).name), sha256(path))[1])
    first = collect(here)
    assert read == ["a", "b", "c"]
    read.clear()
    assert collect(here) == first
    assert read == ["c"], "what has just been written may be written again within the same tick"
    os.utime(here / "b", (2, 2))
    (here / "a").write_text("A")
    os.utime(here / "a", (1, 1))  # only the time of the change of its data was put back
    read.clear()
    assert collect(here).entries[0].content == hashlib.sha256(b"A").hexdigest()
    assert read == ["a", "b", "c"]
    for damaged in (b"", b"[1]", b'{"a": 3, "b": [1], "c": null}'):
        next((state / "hashes").iterdir()).write_bytes(damaged)
        assert collect(here).tree == collect(here).tree
    monkeypatch.setattr(hash_cache, "KEPT", 2)
    for number in range(4):
        folder = here.parent / f"p{number}"
        folder.mkdir()
        write(folder, "a")
        os.utime(folder / "a", (1, 1))
        collect(folder)
    assert len(list((state / "hashes").iterdir())) == 2


def test_a_cache_that_cannot_be_written_changes_nothing(here: Path, state: Path) -> None:
    write(here, "a")
    os.utime(here / "a", (1, 1))
    state.write_text("a file")
    assert paths(here) == ["a"]


def test_too_much_is_asked_about(here: Path) -> None:
    write(here, "train.py")
    (here / "data" / "deep").mkdir(parents=True)
    for name, size in (("data/deep/big.bin", 3_000_000), ("data/x.bin", 200_000), ("model.pt", 500_000)):
        (here / name).write_bytes(b"\0" * size)
    with pytest.raises(ProjectTooLarge) as refused:
        collect(here, max_mb=2)
    error = refused.value
    assert (error.size, error.max_mb) == (3_700_008, 2)
    assert error.biggest == [
        ("data/deep/big.bin", 3_000_000),
        ("model.pt", 500_000),
        ("data/x.bin", 200_000),
        ("train.py", 8),
    ]
    assert "has 3.7 MB, over code.max_mb = 2: data/deep/big.bin 3.0 MB, model.pt 0.5 MB" in error.message
    assert "--set code.max_mb=4" in error.hint
    assert collect(here, max_mb=4) == collect(here)


def test_what_is_biggest() -> None:
    many = {f"data/{number}.bin": 10 for number in range(100)}
    assert biggest({**many, "src/a.py": 5, "model.pt": 400}) == [
        ("data/", 1000),
        ("model.pt", 400),
        ("src/a.py", 5),
    ]


def test_nothing_and_too_many(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="nothing to send"):
        collect(here)
    write(here, *(str(number) for number in range(5)))
    for module in ("project", "project_files"):
        monkeypatch.setattr(f"tui.fleet.{module}.MAX_FILES", 4)
    with pytest.raises(UsageError, match=r"over \d+ files"):
        collect(here)
    git(here, "init", "-q")
    with pytest.raises(UsageError, match=r"over \d+ files"):
        collect(here)


def test_an_ignore_file_that_cannot_be_used(here: Path) -> None:
    write(here, "a")
    (here / ".encampignore").write_bytes(b"\xff\n")
    with pytest.raises(UsageError, match=r"encampignore cannot be used"):
        collect(here)


def test_which_folder_a_profile_means(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    text = '[run]\nscript = "train.py"\n'
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    for file in (tmp_path / "mine.toml", tmp_path / "config" / "profiles" / "named.toml"):
        file.write_text(text + '[code]\npath = "."\n')
    assert folder_of(parse(text, "p.toml")) is None
    assert folder_of(load(tmp_path / "mine.toml")) == tmp_path
    assert folder_of(load("../mine.toml")) == tmp_path
    assert folder_of(load(tmp_path / "config" / "profiles" / "named.toml")) == here
    assert folder_of(load(library.find("gpt-tiny"), ["code.path=."])) == here
    assert folder_of(load(tmp_path / "mine.toml", [f"code.path={here}"])) == here
    assert folder_of(load(tmp_path / "mine.toml", ["code.path=~"])) == tmp_path
    with pytest.raises(UsageError, match=r"code.path: there is no folder"):
        folder_of(load(tmp_path / "mine.toml", ["code.path=nowhere"]))

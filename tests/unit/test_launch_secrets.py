"""Secrets are found where the profile says, and nothing that goes wrong shows one."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest

from tui.fleet import launch_secrets
from tui.fleet.errors import UsageError
from tui.fleet.launch_secrets import remember, resolve, resolve_again

VALUE = "s3cret-value-nobody-may-see"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ENCAMP_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("MY_TOKEN", VALUE)
    return tmp_path


def refusal(name: str, source: str) -> UsageError:
    """Why it is refused; nothing of the error has the value."""
    with pytest.raises(UsageError) as caught:
        resolve({name: source})
    assert VALUE not in "".join(traceback.format_exception(caught.value))
    assert caught.value.hint
    assert name in caught.value.message
    return caught.value


def test_from_a_variable_and_from_a_file(home: Path) -> None:
    (home / "token").write_text(f"{VALUE}\n")
    (home / "dos").write_bytes(f"{VALUE}\r\n".encode())
    (home / "two").write_text("one\ntwo\n\n")
    sources = {
        "A": "env:MY_TOKEN",
        "B": "file:~/token",
        "C": f"file:{home}/token",
        "D": "file:~/dos",
        "E": "file:~/two",
    }
    assert resolve(sources) == {"A": VALUE, "B": VALUE, "C": VALUE, "D": VALUE, "E": "one\ntwo\n"}
    assert resolve({}) == {}


def test_values_are_not_shown() -> None:
    found = resolve({"A": "env:MY_TOKEN"})
    assert found["A"] == VALUE
    for shown in (repr(found), str(found), f"{found}", f"{found!r}", "%s" % found):  # noqa: UP031
        assert shown == "<secrets: A>"


def test_what_is_missing_is_named(home: Path) -> None:
    missing = refusal("WANDB_API_KEY", "env:NOT_SET")
    assert missing.message == "The secret WANDB_API_KEY is not there: the variable NOT_SET is not set here."
    assert "export NOT_SET=" in missing.hint
    assert str(home / "nowhere") in refusal("A", "file:~/nowhere").message


def test_what_cannot_be_a_value(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "empty").write_text("\n")
    (home / "zero").write_text(f"{VALUE}\0")
    (home / "large").write_text(VALUE * 10_000)
    (home / "binary").write_bytes(VALUE.encode() + b"\xff")
    os.mkfifo(home / "pipe")
    monkeypatch.setenv("EMPTY", "")
    for source in ("env:EMPTY", "file:~/empty"):
        assert "is empty" in refusal("A", source).message
    for source in ("file:~/zero", "file:~/large"):
        assert "cannot be the value" in refusal("A", source).message
    assert "is not text" in refusal("A", "file:~/binary").message
    for source in ("file:~/pipe", "file:/dev/null"):
        assert "is not a plain file" in refusal("A", source).message
    assert str(home) in refusal("A", f"file:{home}").message


def test_a_value_in_the_place_of_its_source() -> None:
    assert "not what it is" in refusal("A", VALUE).message


def test_a_host_cannot_ask_for_other_secrets_than_the_run_was_launched_with(home: Path) -> None:
    (home / "id_ed25519").write_text(VALUE)
    remember("run-1", {"A": "env:MY_TOKEN"}, ["a", "b"])
    assert resolve_again("run-1", {"A": "env:MY_TOKEN"}, ["a", "b"]) == {"A": VALUE}
    assert resolve_again("run-1", {"A": "env:MY_TOKEN"}, ["b"]) == {"A": VALUE}
    assert resolve_again("run-1", {}, ["c"]) == {}
    for run, sources, hosts in (
        ("run-1", {"A": "file:~/id_ed25519"}, ["a", "b"]),
        ("run-1", {"A": "env:MY_TOKEN", "B": "file:~/id_ed25519"}, ["a", "b"]),
        ("run-1", {"A": "env:MY_TOKEN"}, ["a", "c"]),
        ("run-2", {"A": "env:MY_TOKEN"}, ["a", "b"]),
        ("../run-1", {"A": "env:MY_TOKEN"}, ["a", "b"]),
    ):
        with pytest.raises(UsageError):
            resolve_again(run, sources, hosts)


def test_what_is_remembered_has_no_values_and_an_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_secrets, "MAX_RECORDS", 3)
    for number in range(5):
        remember(f"run-{number}", {"A": "env:MY_TOKEN"}, ["a"])
        os.utime(home / "state" / "secret-sources" / f"run-{number}.json", (number, number))
    remember("without", {}, ["a"])
    records = sorted(path.name for path in (home / "state" / "secret-sources").iterdir())
    assert records == ["run-2.json", "run-3.json", "run-4.json"]
    assert VALUE not in "".join(path.read_text() for path in (home / "state" / "secret-sources").iterdir())

"""Questions on the terminal that want a whole word, and words that were meant for another command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tui.__main__ import main
from tui.cli import prompts


@pytest.mark.parametrize(
    ("typed", "agreed", "again"),
    [
        (("yes",), True, 0),
        (("y", "YES "), True, 1),
        (("y", "sure", "no"), False, 2),
        (("",), False, 0),
        (("n",), False, 0),
    ],
)
async def test_it_wants_the_whole_word_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: tuple[str, ...],
    agreed: bool,
    again: int,
) -> None:
    answers: Iterator[str] = iter(typed)

    async def ask(question: str, *, echo: bool) -> str:
        return next(answers)

    monkeypatch.setattr(prompts, "_ask", ask)
    assert await prompts.confirmed("Restart it? (yes/no) ", "yes") is agreed
    assert capsys.readouterr().err.count("type yes in full, or no") == again
    assert list(answers) == []


def test_status_of_a_run_says_which_command_shows_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENCAMP_CONFIG_DIR", str(tmp_path))
    assert main(["hosts", "add", "root@203.0.113.7", "--name", "vast-a"]) == 0
    assert main(["status", "train-k3f9x"]) == 2
    said = capsys.readouterr().err
    assert "There is no host train-k3f9x." in said
    assert "takes hosts: vast-a" in said and "encamp diagnose train-k3f9x" in said

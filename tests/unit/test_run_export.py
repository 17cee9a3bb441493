"""Which folder of checkpoints the command line of a run means."""

from __future__ import annotations

import pytest

from tui.fleet.run_export import checkpoint_dir


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), ""),
        (("--steps", "3"), ""),
        (("--checkpoint-dir", "kept", "--steps", "3"), "/work/kept"),
        (("--checkpoint-dir=kept/here",), "/work/kept/here"),
        (("--checkpoint-dir", "/data/kept"), "/data/kept"),
        (("--checkpoint-dir", "~/kept"), "~/kept"),
        (("--checkpoint-dir", "first", "--checkpoint-dir", "last"), "/work/last"),
        (("--checkpoint-dir",), ""),
    ],
)
def test_the_folder_that_the_arguments_name(args: tuple[str, ...], expected: str) -> None:
    assert checkpoint_dir(args, "/work") == expected

"""Which checkpoint `encamp restart --from` means: a path of another run is no name for one of this."""

from __future__ import annotations

import argparse

import pytest

from tui.cli.control import checkpoint, refuse_other_folder
from tui.fleet.errors import UsageError

FOLDER = "/home/ann/.encamp/runs/gpt/checkpoints"


@pytest.mark.parametrize(
    "text", ["200", "step-200", f"{FOLDER}/step-200/", "checkpoints/step-200", "gpt/checkpoints/./step-200"]
)
def test_a_checkpoint_of_the_run(text: str) -> None:
    step = checkpoint(text)
    refuse_other_folder(step, "gpt", FOLDER)
    assert step == 200


@pytest.mark.parametrize(
    "text", [f"{FOLDER.replace('gpt', 'other')}/step-200", "../other/checkpoints/step-200", "points/step-200"]
)
def test_a_checkpoint_of_something_else(text: str) -> None:
    with pytest.raises(UsageError, match="is not where gpt has its checkpoints: that is /home/ann"):
        refuse_other_folder(checkpoint(text), "gpt", FOLDER)


@pytest.mark.parametrize("text", ["..", "step-", "step-200/..", "", "-1"])
def test_what_names_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        checkpoint(text)

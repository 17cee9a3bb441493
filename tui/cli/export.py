"""`encamp export`: the weights of a run's checkpoint, down to this machine as one file."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from . import parser

if TYPE_CHECKING:
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    export_parser = parser.add(
        commands,
        "export",
        export,
        summary="fetch the weights of a checkpoint as one file",
        details="The host writes the weights alone, under the job's own names, as safetensors or as a "
        "state_dict of torch, in the Python of the run; then the file is fetched as encamp get does it. "
        "For runs of the built-in trainer, wherever they keep their checkpoints.",
        examples=[
            "encamp export gpt-tiny-k3f9x",
            "encamp export gpt --step 400 --to model.pt",
        ],
        connects=True,
    )
    parser.add_run(export_parser)
    export_parser.add_argument(
        "--step", metavar="N", type=parser.whole, help="default: that of the newest complete checkpoint"
    )
    export_parser.add_argument(
        "--to",
        metavar="FILE",
        default=".",
        help="*.safetensors or *.pt, or a folder; default: RUN-step-N.safetensors, here",
    )
    export_parser.add_argument(
        "--force", action="store_true", help="overwrite a file here that is different; an equal one is kept"
    )


def export(args: argparse.Namespace) -> Coroutine[None, None, int]:
    """Export, fetch and report."""
    from .export_run import run

    return run(args)

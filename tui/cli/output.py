"""What commands print: one JSON object or text for people, errors on stderr, and nothing that a host made up.

Text that comes from a host passes `clean` before it reaches a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from ..fleet.errors import EncampError


def print_json(value: dict[str, Any]) -> None:
    """Print the one object of a `--json` call."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Say something that is not the result (progress, what was ignored): to stderr."""
    print(f"encamp: {text}", file=sys.stderr, flush=True)


def print_error(error: EncampError, *, as_json: bool) -> None:
    """Say what went wrong and what to do next; with `as_json` also as the one object on stdout."""
    print(f"encamp: {clean(error.message)}", file=sys.stderr)
    tail = getattr(error, "tail", "")
    if tail:
        print("  its last words:", file=sys.stderr)
        for line in tail.split("\n"):
            print(f"  | {clean(line)}", file=sys.stderr)
    if error.hint:
        print(f"  {clean(error.hint)}", file=sys.stderr)
    sys.stderr.flush()
    if as_json:
        fields: dict[str, Any] = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
        # What the kinds of errors have besides: a refusal its code and host, a failed run its last words.
        for name in ("code", "host", "run", "attempt", "stream", "tail"):
            value = getattr(error, name, None)
            if value is not None:
                fields[name] = value
        print_json({"error": fields})


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print aligned columns; `right` are the indices of the columns of numbers."""
    from rich.cells import cell_len

    from ..formatting import pad

    cells = [list(header), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        line = (pad(cell, widths[column], column in right) for column, cell in enumerate(row))
        print("  ".join(line).rstrip())


def clean(text: str) -> str:
    """`text` without anything a terminal would obey, on one line for each of its lines."""
    from ..fleet.sanitize import printable

    return "\n".join(printable(line) for line in text.split("\n"))

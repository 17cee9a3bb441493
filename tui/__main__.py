"""The command `encamp`: parse, run, and turn every refusal into a sentence and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .cli import output, parser
from .fleet.errors import EncampError

INTERRUPTED = 130
BROKEN_PIPE = 141
"""What a shell reports for SIGINT and SIGPIPE: 128 plus the signal's number."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 done, 1 failed, 2 wrong usage, 3 host unreachable."""
    _fill_standard_files()
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        try:
            args = parser.parse(words)
            code = args.handler(args)
            if not isinstance(code, int):
                import asyncio  # most of the time that it takes to say --help

                code = asyncio.run(code)
        except SystemExit as end:  # argparse leaves so after --help and --version
            code = end.code
        sys.stdout.flush()
    except EncampError as error:
        return _complain(error, as_json)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence()  # the reader went away (`| head`)
        return BROKEN_PIPE
    except OSError as error:
        return _complain(EncampError(_sentence(error)), as_json)
    return int(code or 0)


def _complain(error: EncampError, as_json: bool) -> int:
    try:
        output.print_error(error, as_json=as_json)
    except OSError:
        _silence()  # stdout or stderr is on a full disk, or nobody reads it: the exit code has to do
    return error.exit_code


def _silence() -> None:
    """Put stdout on nothing, so that the interpreter does not complain as well when it flushes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fill_standard_files() -> None:
    """Put what was closed (`>&-`) on nothing: a connection could become stdout, and get what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _sentence(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


if __name__ == "__main__":
    sys.exit(main())

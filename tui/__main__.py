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
        output.print_error(error, as_json=as_json)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`). With stdout on nothing the interpreter does not complain as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except OSError as error:
        output.print_error(EncampError(_sentence(error)), as_json=as_json)
        return 1
    return int(code or 0)


def _sentence(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


if __name__ == "__main__":
    sys.exit(main())

"""The entry: checks the interpreter, reads the options, and only then loads torch and the rest."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - this is the host's interpreter
    sys.exit(
        "trainer: error: needs Python 3.10 or newer, this is "
        + sys.version.split()[0]
        + ": "
        + sys.executable
    )

from .config import parse
from .errors import JobError, UsageError


def main(argv: list[str]) -> int:
    """Train, and return the exit status: 0 done or stopped as asked, 2 wrong options or a broken job file.

    What goes wrong while training is raised, so that the launcher records it.
    """
    cfg = parse(argv)
    try:
        try:
            from .run import run
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise UsageError(f"{sys.executable} has no torch; use a Python that can import it") from error
        run(cfg)
    except (JobError, UsageError) as error:
        print(f"trainer: error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

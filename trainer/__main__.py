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
from .errors import TrainerError, UsageError


def main(argv: list[str]) -> str | None:
    """Train. Returns what went wrong, or None when training is done or was stopped as asked.

    Exceptions of the job's own code pass through, for the launcher to record with their traceback.
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
    except TrainerError as error:
        return f"trainer: error: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

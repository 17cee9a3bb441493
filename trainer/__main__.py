"""The entry: checks the interpreter, reads the options, and only then loads the framework and the rest."""

import os
import sys
from collections.abc import Callable

if sys.version_info < (3, 10):  # noqa: UP036 - this is the host's interpreter
    sys.exit(
        "trainer: error: needs Python 3.10 or newer, this is "
        + sys.version.split()[0]
        + ": "
        + sys.executable
    )

from . import strategies
from .config import Config, parse
from .errors import TrainerError, UsageError

FRAMEWORKS = {"torch": ("torch",), "tensorflow": ("tensorflow", "keras", "numpy")}
"""What a framework's side of the trainer imports."""


def main(argv: list[str]) -> str | None:
    """Train. Returns what went wrong, or None when training is done or was stopped as asked.

    Exceptions of the job's own code pass through, for the launcher to record with their traceback.
    """
    cfg = parse(argv)
    try:
        framework = strategies.lookup(cfg.strategy).framework
        try:
            run = runner(framework)
        except ModuleNotFoundError as error:
            if error.name not in FRAMEWORKS[framework]:
                raise
            raise UsageError(
                f"{sys.executable} has no {error.name}; use a Python that can import it"
            ) from error
        run(cfg)
    except TrainerError as error:
        return f"trainer: error: {error}"
    return None


def runner(framework: str) -> Callable[[Config], None]:
    """What trains under a framework: of several that may be here, only that one is loaded."""
    if framework == "tensorflow":
        # Before it is loaded: other backends of Keras may be chosen on this host, and it says much that is
        # of no use in a log.
        os.environ["KERAS_BACKEND"] = "tensorflow"
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from .tensorflow.run import run as with_tensorflow

        return with_tensorflow
    from .run import run as with_torch

    return with_torch


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

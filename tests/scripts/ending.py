"""Ends in the way its argument names."""

import atexit
import os
import sys


def fall() -> None:
    {}["missing"]


def chained() -> None:
    try:
        try:
            fall()
        except KeyError as error:
            raise ValueError("caused") from error
    except ValueError:
        raise RuntimeError("while handling ☃ \U0001f600")  # noqa: B904


class Rude(Exception):
    def __str__(self) -> str:
        raise OSError("not even this")


def failing_hook(kind, error, trace):
    print(
        "hook sees", kind, error, trace.tb_lineno, sys.last_traceback is trace, error.__traceback__ is trace
    )
    raise AttributeError("hook is broken")


def polite_hook(kind, error, trace):
    print("hook sees", kind, error, trace.tb_lineno)


def forked() -> None:
    child = os.fork()
    if child == 0:
        raise LookupError("in the child")
    print("child ended with", os.waitpid(child, 0)[1])


def hooked(hook) -> None:
    sys.excepthook = hook
    fall()


def rude() -> None:
    raise Rude


def interrupted() -> None:
    raise KeyboardInterrupt


WAYS = {
    "return": lambda: None,
    "0": lambda: sys.exit(0),
    "3": lambda: sys.exit(3),
    "256": lambda: sys.exit(256),
    "-1": lambda: sys.exit(-1),
    "none": lambda: sys.exit(None),
    "text": lambda: sys.exit("sorry, no data"),
    "tuple": lambda: sys.exit((1, 2)),
    "now": lambda: os._exit(5),
    "error": fall,
    "chained": chained,
    "rude": rude,
    "interrupted": interrupted,
    "failing-hook": lambda: hooked(failing_hook),
    "polite-hook": lambda: hooked(polite_hook),
    "exiting-hook": lambda: hooked(lambda *_: sys.exit(9)),
    "forked": forked,
    "abort": os.abort,
}

atexit.register(print, "first registered, last called")
atexit.register(
    lambda: print("excepthook is back:", sys.excepthook in (sys.__excepthook__, failing_hook, polite_hook))
)
if __name__ == "__main__":
    print("before the end", flush=True)
    WAYS[sys.argv[1]]()

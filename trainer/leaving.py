"""Ends of the process that are not the trainer's: what a job does with `sys.exit` or `os._exit`.

Left alone, `sys.exit(0)` in a job would look like a training that is over.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from .errors import JobError


class Watch:
    """How far training is, for who has to say that it is not over."""

    def __init__(self, task: str, steps: int) -> None:
        self.task = task
        self.steps = steps
        self.position: Callable[[], int] | None = None
        """The last step that is done; None as long as nothing is built."""

    def early(self, how: str) -> JobError:
        """The sentence for a job that ended the process by calling `how`."""
        if self.position is None:
            when = "before the first step"
        elif self.position() < self.steps:
            when = f"before step {self.position() + 1} of {self.steps}"
        else:
            when = f"after step {self.steps} of {self.steps}, before training had come to its end"
        return JobError(
            f"job {self.task} ended the process by {how} {when}: a job's functions return or raise, and "
            "--steps says when training is over"
        )


@contextmanager
def watched(task: str, steps: int) -> Iterator[Watch]:
    """While this is open a job cannot end the process without a word: that raises JobError instead."""
    watch, own, leave = Watch(task, steps), os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != own:
            leave(status)  # processes that prepare data end like this
        error = watch.early(f"os._exit({status})")
        if threading.current_thread() is threading.main_thread():
            raise error
        print(f"trainer: error: {error}", file=sys.stderr, flush=True)
        leave(status or 1)

    os._exit = refuse
    try:
        yield watch
    except SystemExit as end:
        code = "" if end.code is None else repr(end.code)[:200]
        raise watch.early(f"sys.exit({code})") from end
    finally:
        os._exit = leave

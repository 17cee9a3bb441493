"""`encamp` that stops itself in the moment in which it says for the COUNTth time that a host is at STAGE.

Called with STAGE COUNT WORD... What it began before is done, what comes after waits for SIGCONT.
"""

import os
import signal
import sys

from tui.__main__ import main
from tui.cli.host_progress import HostProgress

STAGE, COUNT, *WORDS = sys.argv[1:]
show, left = HostProgress.show, int(COUNT)


def show_and_freeze(progress: HostProgress, host: str, stage: str) -> None:
    global left
    show(progress, host, stage)
    if stage == STAGE:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)


HostProgress.show = show_and_freeze  # type: ignore[method-assign]
sys.exit(main(WORDS))

"""`encamp` that stops itself in the moment in which it says that hosts are at some stages.

Called with STAGE,STAGE,... WORD... It stops when it has said all of them in this order, whatever it says in
between. What it began before is done; what comes after waits for SIGCONT. `stop` in the list stops it too.
"""

import os
import signal
import sys

from tui.__main__ import main
from tui.cli.host_progress import HostProgress

STOP = "stop"
left = [*sys.argv[1].split(","), STOP]
show = HostProgress.show


def show_and_freeze(progress: HostProgress, host: str, stage: str) -> None:
    show(progress, host, stage)
    if left and stage == left[0]:
        left.pop(0)
    while left and left[0] == STOP:
        left.pop(0)
        os.kill(os.getpid(), signal.SIGSTOP)


HostProgress.show = show_and_freeze  # type: ignore[method-assign]
sys.exit(main(sys.argv[2:]))

"""A rank that does what its arguments say: each is `WORD` for all ranks, or `RANK:WORD` for one of them.

Words: say=TEXT, exit=CODE, now=CODE (without cleaning up), raise=TEXT, wait (until the file `go` appears in
the working directory), forever, deaf (ignores SIGTERM), gentle (ends with code 0 on SIGTERM), orphan (leaves
a child behind that has a session of its own), detached (the same, its parent gone), nameless (the same,
with an empty environment), late (leaves one behind that ends once the launcher has), kill (kills itself).
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def act(word, value):
    if word == "say":
        print(value, flush=True)
    elif word == "exit":
        sys.exit(int(value))
    elif word == "now":
        os._exit(int(value))
    elif word == "raise":
        raise ValueError(value)
    elif word == "wait":
        while not Path("go").exists():
            time.sleep(0.01)
    elif word == "forever":
        while True:
            time.sleep(0.1)
    elif word == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif word == "gentle":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    elif word == "orphan":
        subprocess.Popen(SLEEP, start_new_session=True)
    elif word in ("detached", "nameless"):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve(SLEEP[0], SLEEP, dict(os.environ) if word == "detached" else {})
            os._exit(0)
        os.wait()
    elif word == "late":
        launcher = f"/proc/{os.getppid()}"
        if os.fork() == 0:
            while Path(launcher).exists():
                time.sleep(0.01)
            os._exit(0)
    elif word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise LookupError(word)


for argument in sys.argv[1:]:
    rank, colon, word = argument.rpartition(":")
    if not colon or rank == os.environ["RANK"]:
        name, _, value = word.partition("=")
        act(name, value)

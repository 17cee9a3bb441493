"""A stand-in for torchrun without torch: `launcher.py NPROC SHIM KIND TARGET ARGUMENT...`.

FIRST_RANK is the first global rank of this node, 0 without it. Nodes do not meet.

Starts the ranks in sessions of their own; when one fails it ends the others and says so in torchrun's words;
on SIGTERM it passes that on, waits, and fails.
"""

import os
import signal
import subprocess
import sys
import time

WORDS = """\
[{index}]:
  time      : {time}
  host      : localhost
  rank      : {rank} (local_rank: {local_rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : whatever
"""


class Terminated(Exception):
    pass


def terminate(number, frame):
    raise Terminated


def close(ranks):
    for rank in ranks:
        if rank.poll() is None:
            print(f"Sending process {rank.pid} closing signal SIGTERM", flush=True)
            os.killpg(rank.pid, signal.SIGTERM)
    for rank in ranks:
        rank.wait()


def main():
    nproc, program = int(sys.argv[1]), sys.argv[2:]
    first = int(os.environ.pop("FIRST_RANK", "0"))
    signal.signal(signal.SIGTERM, terminate)
    ranks = []
    try:
        for rank in range(nproc):
            names = {"RANK": first + rank, "LOCAL_RANK": rank, "WORLD_SIZE": first + nproc}
            env = {**os.environ, **{name: str(value) for name, value in names.items()}}
            ranks.append(subprocess.Popen([sys.executable, "-u", *program], env=env, start_new_session=True))
        while all(rank.poll() in (None, 0) for rank in ranks):
            if all(rank.poll() == 0 for rank in ranks):
                return 0
            time.sleep(0.01)
    except Terminated:
        close(ranks)
        print("SignalException: got signal: 15")
        return 1
    close(ranks)
    failed = [(number, rank) for number, rank in enumerate(ranks) if rank.returncode != 0]
    for index, (number, rank) in enumerate(failed):
        now = time.strftime("%Y-%m-%d_%H:%M:%S")
        named = {"rank": first + number, "local_rank": number}
        print(WORDS.format(index=index, time=now, code=rank.returncode, pid=rank.pid, **named))
    return 1


sys.exit(main())

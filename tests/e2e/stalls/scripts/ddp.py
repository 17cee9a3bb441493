"""DDP in which one rank does something else at step 8: `ddp.py WHAT RANK`. Everybody's mistakes, one each.

When it begins, the file `begun` gets the time. Under `wait` and `go-on` nothing
happens: somebody does something from outside.
"""

# ruff: noqa: PTH110, PTH118, PTH123, SIM115 (as people write it)

import ctypes
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

what, culprit = sys.argv[1], int(sys.argv[2])
if what == "own-ways":
    signal.signal(signal.SIGUSR2, lambda *_: print("checkpoint, please"))
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()
    sys.stdout = open(os.devnull, "w")
if what == "own-hook":
    sys.excepthook = lambda kind, error, trace: print("sorry:", kind.__name__)

torch.manual_seed(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
pair = dist.new_group([0, 1])


def begin():
    Path("begun.part").write_text(str(time.time()))
    Path("begun.part").rename("begun")


def wait_for_the_others_file():
    while not os.path.exists("never"):
        time.sleep(0.1)


def spin():
    total = 0
    while total >= 0:
        total += 1


def read_config():
    raise KeyError("learning_rate")


def two_locks():
    first, second = threading.Lock(), threading.Lock()

    def other():
        with second:
            time.sleep(0.3)
            with first:
                pass

    threading.Thread(target=other, name="prefetcher", daemon=True).start()
    with first:
        time.sleep(0.2)
        with second:
            pass


def next_sample(samples):
    return samples.get()


def finish(thread):
    thread.join()


def write_state():
    os.mkfifo("state.pt")
    torch.save(model.state_dict(), "state.pt")


def call_library():
    mutex = ctypes.create_string_buffer(64)
    library = ctypes.PyDLL(None)  # which keeps the GIL
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def hang_in_the_kernel():
    """A parent waits in the kernel for its child of `vfork` to execute something, and no signal wakes it."""
    Path("hang.c").write_text(
        "#include <unistd.h>\nvoid hang(void) { if (vfork() == 0) for (;;) pause(); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "hang.so", "hang.c"], check=True)
    library = ctypes.CDLL("./hang.so")
    begin()
    library.hang()


def go_wrong():
    if what == "kernel":
        hang_in_the_kernel()
    begin()
    if what in ("sleep", "own-ways"):
        wait_for_the_others_file()
    elif what == "spin":
        spin()
    elif what == "leave":
        sys.exit(0)
    elif what == "leave-silently":
        os._exit(0)
    elif what == "exit-3":
        os._exit(3)
    elif what in ("raise", "own-hook"):
        read_config()
    elif what == "locks":
        two_locks()
    elif what == "queue":
        next_sample(queue.Queue())
    elif what == "thread":
        thread = threading.Thread(target=time.sleep, args=(600,), daemon=True)
        thread.start()
        finish(thread)
    elif what == "library":
        call_library()
    elif what == "save":
        write_state()
    elif what == "allocate":
        torch.empty(2**50)
    elif what == "memory":
        bytearray(2**60)
    elif what == "fill-memory":
        kept = []
        while True:
            kept.append(bytearray(os.urandom(1 << 20)) * 16)
    elif what == "shape":
        dist.all_reduce(torch.ones(3000))
    elif what == "small-shape":
        dist.all_reduce(torch.ones(5))
    elif what == "kind":
        dist.broadcast(torch.ones(8), src=culprit)
    elif what == "order":
        dist.all_reduce(torch.ones(8))
        dist.barrier()
    elif what == "receive":
        dist.recv(torch.ones(4), src=1 - rank)
    elif what == "segfault":
        ctypes.string_at(0)


def goes_right():
    """What the others do at that step."""
    if what == "shape":
        dist.all_reduce(torch.ones(5))
    elif what == "small-shape":
        dist.all_reduce(torch.ones(3000))
    elif what == "kind":
        dist.all_reduce(torch.ones(8))
    elif what == "order":
        dist.barrier()
        dist.all_reduce(torch.ones(8))
    elif what == "barrier":
        dist.barrier()
    elif what == "subgroup" and rank < 2:
        dist.all_reduce(torch.ones(8), group=pair)


for step in range(1, 10_000 if what == "go-on" else 60):
    if step == 8 and rank == culprit:
        if what == "barrier":
            begin()
        elif what == "subgroup":
            begin()
            wait_for_the_others_file()
        else:
            go_wrong()
    elif step == 8:
        goes_right()
    if what == "slow" and rank == culprit:
        time.sleep(0.3)
    loss = model(torch.ones(2, 8)).sum()
    loss.backward()
    optimizer.step()
    if what == "nan" and rank == culprit:
        value = "NaN" if step > 8 else "0.5"
        with open(os.path.join(os.environ["ENCAMP_RANK_DIR"], "progress.jsonl"), "a") as file:
            file.write(f'{{"step": {step}, "time": {time.time()}, "loss": {value}}}\n')
    time.sleep(0.2)
dist.barrier()
dist.destroy_process_group()

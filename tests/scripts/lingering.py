"""Objects, threads and handlers that act after the last line: their globals must still be there."""

import atexit
import threading

NAME = "a global"


class Resource:
    def __init__(self, label):
        self.label = label

    def __del__(self):
        print("closing", self.label, "with", NAME, __name__)


def late():
    main.join()
    print("thread goes on after the main one", NAME)


resource = Resource("kept in a global")
cycle = Resource("in a cycle")
cycle.itself = cycle
main = threading.main_thread()
atexit.register(lambda: print("atexit with", NAME))
threading.Thread(target=late).start()
print("last line")

"""Pickles functions and classes of the script itself to worker processes, forked and spawned."""

import multiprocessing
import sys


class Point:
    def __init__(self, x):
        self.x = x


def double(point):
    return Point(point.x * 2)


if __name__ == "__main__":
    for method in sys.argv[1:]:
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, [point.x for point in pool.map(double, [Point(1), Point(2)])])

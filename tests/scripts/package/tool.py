"""A module with a relative import, started with -m."""

import sys

from . import helper

print(helper.WORD, __name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0])
if len(sys.argv) > 1:
    raise SystemError(sys.argv[1])

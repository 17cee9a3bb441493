"""What `python -m package` runs, and `python PATH/package`."""

import sys

print("package main", __name__, __package__, __spec__ and __spec__.name, sys.argv, sys.path[0])

"""Says everything that a program can see of how it was started."""

import sys
from pathlib import Path

print(sys.argv, getattr(sys, "orig_argv", None))
print(sys.path, Path.cwd())
print(list(globals()))
print(__name__, __file__, __spec__, __package__, __doc__, __cached__, type(__loader__), __loader__.__dict__)
print(__builtins__ is sys.modules["builtins"], sys.modules["__main__"].__dict__ is globals())
print(sorted(name for name in sys.modules if name not in sys.builtin_module_names))
print(sys.excepthook is sys.__excepthook__, sys.stdout, sys.stderr, sys.flags)

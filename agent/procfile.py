"""Files of /proc and /sys kept open and read again: a read costs a third of opening them each time."""

from __future__ import annotations

import os


class ProcFile:
    """One small file that the kernel makes up whenever it is read."""

    __slots__ = ("_fd", "_size", "path")

    def __init__(self, path: str, size: int = 8192) -> None:
        self.path = path
        self._size = size
        self._fd = -1

    def read(self) -> bytes:
        """Its first `size` bytes; empty when it does not exist or cannot be read."""
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._fd, self._size, 0)
        except OSError:
            self.close()  # a removed control group, for one; there may be another of that name next time
            return b""

    def close(self) -> None:
        """Let go of the file; the next `read` opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

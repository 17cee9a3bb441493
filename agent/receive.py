"""`receive-code NONCE HOME`: takes a project on stdin, past the daemon, and makes a tree of it.

The sender says which tree it is and sends its manifest, as a zlib stream of `size` bytes behind a line of
JSON: {"sha256", "name", "size"}. The answer is `need N`, and in N bytes JSON: [[number in the manifest, bytes
that are here already], ...]. Then come frames until all of that is here, one file after the other without
anything between: a byte (0 as it is, 1 a zlib stream), the length in 4 bytes, the data. A `.` goes back for a
frame that is on the disk, except for the last; a space says that work goes on; the end is `+`, or instead of
anything `-` and a line of JSON: [code, message].

Files that another tree has are taken from there, if they are still what they were. What came before a
transfer broke off lies in `code/incoming/<transfer>/` by its hash, for the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import sys
import time
import zlib
from typing import BinaryIO, Dict, Iterator, List, Set, Tuple

from . import assembly, files, paths, trees
from .assembly import Assembly
from .errors import RunError
from .trees import Entry

MAX_FRAME = 1024 * 1024
"""Bytes of a frame, before and after."""

HEAD_BYTES = 4096
"""Of the first line, at most."""

BEAT_SECONDS = 5.0
"""So often something is said while nothing comes."""

SPARE_BYTES = 16 * 1024 * 1024
"""What is left free on the disk at least, for what else happens there."""

FILE_BYTES = 4096
"""What a file takes besides its content, about."""

SEARCHED = 2
"""So many of the last used trees may have files that another one needs."""


def main(arguments: List[str]) -> int:
    """The sub-command. What goes wrong is said on stdout."""
    nonce, home = arguments
    out = sys.stdout.buffer
    out.write(nonce.encode() + b"\n")
    out.flush()
    receiver = Receiver(paths.code_dir(home), sys.stdin.buffer, out)
    try:
        receiver.run()
        answer = b"+"
    except (EOFError, BrokenPipeError):
        return 1  # the sender is gone
    except RunError as error:
        answer = b"-" + json.dumps([error.code, error.message]).encode() + b"\n"
    with contextlib.suppress(BrokenPipeError):
        out.write(answer)
        out.flush()
    return 0


class Receiver:
    """One project on its way into `root`, the folder of all."""

    def __init__(self, root: str, stdin: BinaryIO, out: BinaryIO) -> None:
        self.root = root
        self._stdin = stdin
        self._out = out
        self._incoming = ""
        self._beat = time.monotonic()
        self._numbers: Dict[Entry, int] = {}

    def run(self) -> None:
        """Take it. Raises RunError, and EOFError or BrokenPipeError when the sender is gone."""
        sha256, name, manifest = self._head()
        entries = trees.parse(manifest)
        try:
            if trees.present(self.root, sha256):
                self._tell([])
                return
            trees.sweep(self.root)
            with self._transfer():
                self._build(sha256, name, manifest, entries)
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.errno in files.NO_SPACE:
                raise RunError("no-space", f"no space is left for the project in {self.root}") from error
            raise RunError("io", f"the project cannot be stored: {error.strerror}") from error

    def _build(self, sha256: str, name: str, manifest: bytes, entries: List[Entry]) -> None:
        folder = trees.tree_dir(self.root, sha256)
        building = f"{folder}.{os.urandom(4).hex()}.building"
        os.mkdir(building, 0o700)
        try:
            tree = Assembly(building)
            missing = self._reuse(tree, entries)
            self._receive(missing)
            for content, users in missing.items():
                self._say_that_it_goes_on()
                tree.take(os.path.join(self._incoming, content), users)
            self._publish(building, folder, manifest, name)
        finally:
            trees.remove(building)
        for content in {entry.content for entry in entries}.intersection(os.listdir(self._incoming)):
            os.unlink(os.path.join(self._incoming, content))

    # --- what comes and goes --------------------------------------------------------------------------------

    def _head(self) -> Tuple[str, str, bytes]:
        line = self._stdin.readline(HEAD_BYTES)
        if not line:
            raise EOFError
        try:
            head = json.loads(line)
            packed = self._exactly(min(head["size"], trees.MAX_MANIFEST))
            manifest = zlib.decompressobj().decompress(packed, trees.MAX_MANIFEST)
            if hashlib.sha256(manifest).hexdigest() != head["sha256"] or not isinstance(head["name"], str):
                raise ValueError("it has another hash than announced")
        except (ValueError, TypeError, KeyError, zlib.error) as error:
            raise RunError("bad-manifest", f"what should come is not clear: {error}") from error
        return head["sha256"], head["name"][:200], manifest

    def _frames(self) -> Iterator[bytes]:
        """The data of each frame, which has been dealt with when the next one is asked for."""
        while True:
            packed, length = struct.unpack(">?I", self._exactly(5))
            data = self._exactly(min(length, MAX_FRAME + 1))
            try:
                if packed:
                    data = zlib.decompressobj().decompress(data, MAX_FRAME + 1)
                if len(data) > MAX_FRAME:
                    raise ValueError("too long")
            except (ValueError, zlib.error) as error:
                raise RunError("bad-frame", f"what comes makes no sense: {error}") from error
            yield data
            self._say(b".")

    def _exactly(self, size: int) -> bytes:
        data = self._stdin.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def _tell(self, need: List[List[int]]) -> None:
        data = json.dumps(need).encode()
        self._say(b"need %d\n" % len(data) + data)

    def _say(self, data: bytes) -> None:
        self._out.write(data)
        self._out.flush()
        self._beat = time.monotonic()

    def _say_that_it_goes_on(self) -> None:
        if time.monotonic() - self._beat > BEAT_SECONDS:
            self._say(b" ")

    # --- into the tree --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transfer(self) -> Iterator[None]:
        """While it lasts, `_incoming` is a folder of our own, with what broken transfers have left."""
        folder = os.path.join(self.root, "incoming")
        own = None
        while not os.path.isdir(self._incoming):  # another one may have taken it before it was locked
            if own is not None:
                os.close(own)
            self._incoming = os.path.join(folder, os.urandom(8).hex())
            files.make_dirs(self._incoming)
            own = _lock(self._incoming, wait=True)
        try:
            for name in os.listdir(folder):
                self._adopt(os.path.join(folder, name))
            yield
        except (OSError, RunError) as error:
            if getattr(error, "code", "") == "no-space" or getattr(error, "errno", 0) in files.NO_SPACE:
                trees.remove(self._incoming)  # others need what there is
            raise
        finally:
            with contextlib.suppress(OSError):
                os.rmdir(self._incoming)
            if own is not None:
                os.close(own)

    def _adopt(self, folder: str) -> None:
        """Take the files of a transfer of which the process is gone."""
        locked = None if folder == self._incoming else _lock(folder)
        if locked is None:
            return
        try:
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if time.time() - files.changed_at(path) > trees.LEFTOVER_SECONDS:
                    os.unlink(path)
                else:
                    os.rename(path, os.path.join(self._incoming, name))
            os.rmdir(folder)
        except OSError:
            pass  # then without them
        finally:
            os.close(locked)

    def _reuse(self, tree: Assembly, entries: List[Entry]) -> Dict[str, List[Entry]]:
        """Put into the tree what is on this host; returns what is not, by content. Raises OSError."""
        known = self._known({entry.content for entry in entries if entry.kind != "link"})
        missing: Dict[str, List[Entry]] = {}
        for number, entry in enumerate(entries):
            self._say_that_it_goes_on()
            if entry.kind == "link":
                os.symlink(entry.content, tree.path(entry))
            elif not any(tree.put(place, entry, until) for place, until in known.get(entry.content, ())):
                missing.setdefault(entry.content, []).append(entry)
                self._numbers[entry] = number
        return missing

    def _known(self, wanted: Set[str]) -> Dict[str, List[Tuple[str, int]]]:
        """Content -> where it should be, and until when that is certain, see `Assembly.put`."""
        found: Dict[str, List[Tuple[str, int]]] = {}
        for name in wanted.intersection(os.listdir(self._incoming)):
            found[name] = [(os.path.join(self._incoming, name), 0)]
        for folder in trees.newest(self.root)[:SEARCHED]:
            certain = trees.complete_ns(folder)
            for entry in trees.read_manifest(self.root, os.path.basename(folder)) or ():
                if entry.content in wanted:
                    found.setdefault(entry.content, []).append((f"{folder}/{entry.path}", certain))
        return found

    def _receive(self, missing: Dict[str, List[Entry]]) -> None:
        """Have what is missing sent into `_incoming`."""
        parts = [(users[0], self._size_of(content, users[0])) for content, users in missing.items()]
        needed = sum(entry.size - size + FILE_BYTES * len(missing[entry.content]) for entry, size in parts)
        disk = os.statvfs(self.root)
        free = disk.f_bavail * disk.f_frsize
        if needed + SPARE_BYTES > free:
            total = -(-(needed + SPARE_BYTES) // 10**6)
            sizes = f"{total} MB have to be free for it, and {free // 10**6} MB are"
            raise RunError("no-space", f"no space for the project in {self.root}: {sizes}")
        self._tell([[self._numbers[entry], size] for entry, size in parts])
        frames = self._frames()
        data = memoryview(b"")
        for entry, size in parts:
            data = self._file(entry, size, data, frames)

    def _size_of(self, content: str, entry: Entry) -> int:
        """How much of a file is here from an earlier transfer. What is here and was not used is wrong."""
        try:
            size = os.stat(os.path.join(self._incoming, content)).st_size
        except FileNotFoundError:
            return 0
        return size if size < entry.size else 0

    def _file(self, entry: Entry, size: int, data: memoryview, frames: Iterator[bytes]) -> memoryview:
        """Receive one file of which `data` is the next, and return the rest of it. Raises RunError."""
        path = os.path.join(self._incoming, entry.content)
        digest = hashlib.sha256()
        fd = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if size else os.O_TRUNC), assembly.FRESH
        )
        try:
            left = size
            while left:
                old = os.read(fd, min(left, trees.READ_BYTES))
                digest.update(old)
                left -= len(old)
            left = entry.size - size
            while left:
                data = data or memoryview(next(frames))
                piece = data[:left]
                trees.write(fd, piece)
                digest.update(piece)
                left -= len(piece)
                data = data[len(piece) :]
        finally:
            os.close(fd)
        if digest.hexdigest() != entry.content:
            os.unlink(path)
            raise RunError("changed", f"{entry.path} has another content than announced")
        return data

    def _publish(self, building: str, folder: str, manifest: bytes, name: str) -> None:
        lock = _lock(self.root, wait=True)
        old = f"{building[:-9]}.old"
        try:
            if not (os.path.isdir(folder) and trees.present(self.root, os.path.basename(folder))):
                files.write_bytes(folder + ".manifest", manifest)
                with contextlib.suppress(FileNotFoundError):
                    os.rename(folder, old)
                os.rename(building, folder)
            files.write_json(folder + ".json", {"name": name})
        except OSError:
            if not os.path.isdir(folder):
                trees.discard(folder)
            raise
        finally:
            if lock is not None:
                os.close(lock)
            trees.remove(old)


def _lock(folder: str, wait: bool = False) -> int | None:
    """A descriptor that holds the lock of a folder; None when another process has it, or it is gone."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # taken, or a file system without locks
        os.close(fd)
        return None
    return fd

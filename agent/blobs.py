"""Archives by content: zip files that arrive in pieces under their SHA-256 and are unpacked into `code/`.

`code/<sha256>/` exists only complete and verified: it is unpacked under another name and renamed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time

HASH = re.compile(r"[0-9a-f]{64}\Z")

ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
"""Characters that the name of a file must not have."""

MAX_ARCHIVE = 512 * 1024 * 1024
"""Bytes of one archive."""
MAX_UNPACKED = 4 * 1024 * 1024 * 1024
"""Bytes of all its files together."""
MAX_FILES = 100_000
"""Entries of one archive."""

PART_SECONDS = 24 * 3600.0
"""An upload that was not continued for so long is forgotten."""


class BlobError(Exception):
    """An archive is refused; `code` is the wire's failure code, the text one sentence for the user."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BlobStore:
    """The folder `code/`. Its methods block on the disk; calls for one hash must not overlap."""

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, sha256: str) -> str:
        """Where the archive of that hash is unpacked. Raises BlobError when it is not a hash."""
        if not HASH.match(sha256):
            raise BlobError("bad-hash", "a SHA-256 has 64 hexadecimal digits")
        return os.path.join(self.root, sha256)

    def present(self, sha256: str) -> bool:
        """Whether that archive is unpacked and complete. Raises BlobError."""
        return os.path.isdir(self.path(sha256))

    def put(self, sha256: str, size: int, offset: int, data: bytes) -> tuple[int, bool]:
        """Take the bytes at `offset` of an archive of `size` bytes; returns (bytes received, present).

        Bytes that do not continue what is there are not taken: the number returned says where to go on.
        When the last byte has arrived the archive is verified and unpacked. Raises BlobError.
        """
        target = self.path(sha256)
        if os.path.isdir(target):
            return size, True
        if not 0 < size <= MAX_ARCHIVE:
            raise BlobError("too-large", f"an archive of {size} bytes is over the limit of {MAX_ARCHIVE}")
        part = target + ".part"
        try:
            os.makedirs(self.root, 0o700, exist_ok=True)
            received = self._append(part, size, offset, data)
            if received < size:
                return received, False
            self._finish(part, target, sha256)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise BlobError("no-space", f"no space left for code in {self.root}") from error
            raise BlobError("io", f"cannot store code in {self.root}: {error.strerror}") from error
        return size, True

    def sweep(self) -> None:
        """Remove what interrupted uploads and unpackings left behind. Raises nothing."""
        try:
            names = os.listdir(self.root)
        except OSError:
            return
        for name in names:
            path = os.path.join(self.root, name)
            try:
                if name.endswith(".part") and os.stat(path).st_mtime < time.time() - PART_SECONDS:
                    os.unlink(path)
                elif name.endswith(".unpacking"):
                    _remove_tree(path)
            except OSError:
                pass  # next time

    def _append(self, part: str, size: int, offset: int, data: bytes) -> int:
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            received = os.fstat(fd).st_size
            if received > size:
                os.ftruncate(fd, 0)  # left by somebody who claimed another size
                received = 0
            if offset != received or received + len(data) > size:
                return received
            try:
                while data:
                    written = os.pwrite(fd, data, received)
                    data = data[written:]
                    received += written
            except OSError:
                os.ftruncate(fd, offset)  # half a piece would only shift the next one
                raise
            return received
        finally:
            os.close(fd)

    def _finish(self, part: str, target: str, sha256: str) -> None:
        digest = hashlib.sha256()
        with open(part, "rb") as archive:
            for piece in iter(lambda: archive.read(1024 * 1024), b""):
                digest.update(piece)
        unpacking = target + ".unpacking"
        try:
            if digest.hexdigest() != sha256:
                raise BlobError("bad-hash", "the archive that arrived has another SHA-256 than announced")
            _remove_tree(unpacking)
            os.mkdir(unpacking, 0o700)
            unpack(part, unpacking)
            os.rename(unpacking, target)
        except BlobError:
            os.unlink(part)  # it will never be good; after a full disk, though, it may be tried again
            raise
        finally:
            _remove_tree(unpacking)
        os.unlink(part)


def unpack(archive: str, folder: str) -> None:
    """Unpack a zip file into an empty folder: plain files and folders with plain relative names, or nothing.

    The sizes that the archive states are not believed. Raises BlobError, OSError.
    """
    import zipfile  # with its decompressors it takes two megabytes, and few daemons ever need it
    import zlib

    try:
        with zipfile.ZipFile(archive) as source:
            entries = source.infolist()
            if len(entries) > MAX_FILES:
                raise BlobError("bad-archive", f"{len(entries)} files are over the limit of {MAX_FILES}")
            left = MAX_UNPACKED
            for entry in entries:
                name = safe_name(entry.filename)
                mode = entry.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise BlobError("bad-archive", f"{name} is neither a plain file nor a folder")
                if entry.flag_bits & 0x1 or entry.compress_type not in (0, 8):  # stored, deflated
                    raise BlobError("bad-archive", f"{name} is encrypted or of an unusual compression")
                path = os.path.join(folder, name)
                if entry.filename.endswith("/"):
                    os.makedirs(path, exist_ok=True)
                    continue
                os.makedirs(os.path.dirname(path), exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                fd = os.open(path, flags, 0o755 if mode & 0o100 else 0o644)
                with os.fdopen(fd, "wb") as target, source.open(entry) as content:
                    for piece in iter(lambda content=content: content.read(256 * 1024), b""):  # type: ignore[misc]
                        left -= len(piece)
                        if left < 0:
                            raise BlobError("bad-archive", f"it unpacks to over {MAX_UNPACKED} bytes")
                        target.write(piece)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, UnicodeError) as error:
        raise BlobError("bad-archive", f"not a readable zip archive: {error}") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise BlobError("bad-archive", "the archive has two files of one name") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # that is a seek to where a broken archive points
            raise
        raise BlobError("bad-archive", "not a readable zip archive: it points outside itself") from error


def safe_name(name: str) -> str:
    """`name` without a trailing slash, if it stays inside its folder, without surprises. Raises BlobError."""
    plain = name[:-1] if name.endswith("/") else name
    parts = plain.split("/")
    if any(part in ("", ".", "..") or len(os.fsencode(part)) > 255 for part in parts) or len(plain) > 1024:
        raise BlobError("bad-archive", f"{name[:200]!r} is not a plain relative path")
    if ODD.search(name):
        raise BlobError("bad-archive", f"{name[:200]!r} has characters that are not allowed")
    return plain


def _remove_tree(path: str) -> None:
    if not os.path.lexists(path):
        return
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            os.unlink(os.path.join(folder, name))
        for name in folders:
            os.rmdir(os.path.join(folder, name))
    os.rmdir(path)

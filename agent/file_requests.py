"""The requests for files: those in the folders of runs, and archives of code."""

from __future__ import annotations

import base64
import dataclasses

from . import browse, wire
from .actions import in_thread
from .services import Methods, OneRun, Result, Services, run_dir
from .viewer import Viewer


@dataclasses.dataclass(frozen=True)
class FileList(OneRun):
    """A folder or file in the run's folder."""

    path: str
    start: int = 0


@dataclasses.dataclass(frozen=True)
class FileRead(OneRun):
    """A piece of a file there."""

    path: str
    offset: int
    length: int


@dataclasses.dataclass(frozen=True)
class FileHash(OneRun):
    """The beginning of a file there."""

    path: str
    length: int


@dataclasses.dataclass(frozen=True)
class Blob:
    """An archive."""

    sha256: str


@dataclasses.dataclass(frozen=True)
class BlobPut:
    """A piece of an archive; `data` is base64."""

    sha256: str
    name: str
    size: int
    offset: int
    data: str


async def file_list(services: Services, viewer: Viewer, params: FileList) -> Result:
    """What a folder of a run holds."""
    del viewer
    found: Result = await in_thread(browse.entries, run_dir(services, params), params.path, params.start)
    return found


async def file_read(services: Services, viewer: Viewer, params: FileRead) -> Result:
    """A piece of a file."""
    del viewer
    length = min(params.length, wire.MAX_CHUNK)
    data = await in_thread(browse.read, run_dir(services, params), params.path, params.offset, length)
    return {"data": base64.b64encode(data).decode("ascii")}


async def file_hash(services: Services, viewer: Viewer, params: FileHash) -> Result:
    """The SHA-256 of the beginning of a file; one at a time, as it may take minutes."""
    del viewer
    async with services.hashing:
        found: Result = await in_thread(browse.sha256, run_dir(services, params), params.path, params.length)
    return found


async def blob_has(services: Services, viewer: Viewer, params: Blob) -> Result:
    """Whether an archive is here."""
    del viewer
    return {"present": services.blobs.present(params.sha256)}


async def blob_put(services: Services, viewer: Viewer, params: BlobPut) -> Result:
    """Take a piece of an archive; the answer says where to go on. Two viewers may send the same one."""
    del viewer
    data = wire.payload(params.data)
    async with services.uploading:
        received, present = await in_thread(
            services.blobs.put, params.sha256, params.size, params.offset, data
        )
    return {"received": received, "present": present}


METHODS: Methods = {
    "file_list": (FileList, file_list),
    "file_read": (FileRead, file_read),
    "file_hash": (FileHash, file_hash),
    "blob_has": (Blob, blob_has),
    "blob_put": (BlobPut, blob_put),
}

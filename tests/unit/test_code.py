"""The archive of the trainer: the same sources give the same bytes, and a host can unpack and run it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

from agent import blobs
from tui.fleet.code import pack, trainer_archive


def test_only_the_sources_count(tmp_path: Path) -> None:
    package = tmp_path / "p"
    (package / "sub" / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    (package / "sub" / "data.toml").write_text("y = 2\n")
    first = pack("p", package)
    (package / "sub" / "__pycache__" / "z.cpython-311.pyc").write_bytes(b"\0")
    os.utime(package / "__init__.py", (1, 1))
    (package / "__init__.py").chmod(0o600)
    assert pack("p", package) == first
    assert first.ref.sha256 == hashlib.sha256(first.data).hexdigest()
    assert zipfile.ZipFile(BytesIO(first.data)).namelist() == ["p/__init__.py", "p/sub/data.toml"]
    (package / "__init__.py").write_text("x = 2\n")
    assert pack("p", package).ref != first.ref


def test_the_trainer_is_found_without_being_imported() -> None:
    script = (
        "import sys; from tui.fleet.code import trainer_archive; trainer_archive()\n"
        "assert 'trainer' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_host_unpacks_what_we_packed(tmp_path: Path) -> None:
    archive = trainer_archive()
    store = blobs.BlobStore(str(tmp_path))
    assert store.put(archive.ref.sha256, len(archive.data), 0, archive.data) == (len(archive.data), True)
    folder = tmp_path / archive.ref.sha256
    assert (folder / "trainer" / "__main__.py").read_bytes()
    assert not list(folder.rglob("*.pyc"))

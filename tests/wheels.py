"""Python packages for tests that install some without a network: tiny wheels, and one whose build waits."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"

_BACKEND = """
import os, time, zipfile

NAME, GATE, FILES = {name!r}, {gate!r}, {files!r}


def build_wheel(folder, config_settings=None, metadata_directory=None):
    open(GATE + ".reached", "w").close()
    deadline = time.time() + 60
    while not os.path.exists(GATE) and time.time() < deadline:
        time.sleep(0.02)
    with zipfile.ZipFile(os.path.join(folder, NAME), "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    return NAME
"""


def wheel(
    folder: Path,
    name: str,
    files: Mapping[str, str | bytes],
    version: str = "1.0",
    requires: Sequence[str] = (),
) -> Path:
    """Write a wheel that holds `files` into `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, text in _contents(name, files, version, requires).items():
            archive.writestr(entry, text)
    return path


def waiting_package(folder: Path, name: str, gate: Path) -> Path:
    """Write a source package that is built only when the file `gate` is there.

    When its build begins there is a file beside `gate` with `.reached` at the end of its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents = _contents(name, {f"{name}.py": ""}, "1.0", ())
    backend = _BACKEND.format(name=f"{name}-1.0-py3-none-any.whl", gate=str(gate), files=contents)
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    path = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for entry, text in {"pyproject.toml": project, "backend.py": backend}.items():
            info = tarfile.TarInfo(f"{name}-1.0/{entry}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def _contents(
    name: str, files: Mapping[str, str | bytes], version: str, requires: Sequence[str]
) -> dict[str, str | bytes]:
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {package}\n" for package in requires)
    contents: dict[str, str | bytes] = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": _WHEEL,
    }
    record = "".join(f"{entry},,\n" for entry in [*contents, f"{info}/RECORD"])
    return {**contents, f"{info}/RECORD": record}

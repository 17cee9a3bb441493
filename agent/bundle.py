"""Builds agent.pyz on the controller: the same sources always give the same bytes.

It holds this package, the `pynvml.py` of the installed nvidia-ml-py, and a start module: source, which can be
read where it runs, without its comments and docstrings (see `condense.py`). Most modules are one text (see
`packed.py`). Of NVIDIA's module there is the licence and what this package mentions.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import importlib.util
import io
import os
import re
import zipfile
from typing import Dict, Optional, Set

from . import files, packed
from .condense import condense, only

EPOCH = (1980, 1, 1, 0, 0, 0)
"""Modification time of every entry: the earliest that a zip file can hold."""

START = b"import sys\n\nfrom agent.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"

PACKAGE = b"import sys\n\nif sys.version_info >= (3, 8):\n    from . import packed\n\n    packed.install()\n"
"""What the package begins with in the archive. Python that is too old is told so by `__main__`."""

ERRORS = "NVML_ERROR_"
"""pynvml looks for its own names that begin so, and makes exceptions of them."""

NVIDIAS = re.compile("nvml[A-Z]|NVML(?!Error_)")
"""How names of pynvml begin that are in its source."""

LEFT_OUT = ("bundle.py", "condense.py")
"""Modules of this package that only a controller needs."""

ALONE = frozenset(
    (
        *("__init__", "__main__", "packed"),  # what finds the others
        *("connect", "instance", "paths", "version"),  # every connection pays for what the relay loads
        *("nvml", "driver", "survey", "xids"),  # and every host with GPUs for this child
        *("rank", "process_launcher"),  # are written into an attempt
    )
)
"""Modules that stand in the archive as files of their own."""


class BundleError(Exception):
    """The agent cannot be put together here; the text is one sentence for the user."""


@dataclasses.dataclass(frozen=True)
class Bundle:
    """The archive and its SHA-256 in hex, which is its name on the host."""

    data: bytes
    sha256: str


def build(cache: Optional[str] = None) -> Bundle:
    """Put the agent together; `cache` is a folder that keeps the last result. Raises BundleError, OSError."""
    sources = _sources()
    key = _fingerprint(sources)
    cached = _load(cache, key) if cache else None
    if cached is not None:
        return cached
    contents = _contents(sources)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(contents.items()):
            info = zipfile.ZipInfo(name, EPOCH)
            info.create_system = 3  # Unix, whatever this machine is
            info.external_attr = 0o100644 << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED, 9)
    data = buffer.getvalue()
    bundle = Bundle(data, hashlib.sha256(data).hexdigest())
    if cache:
        _store(cache, key, bundle)
    return bundle


def _sources() -> Dict[str, str]:
    """Name in the archive -> path here."""
    package = os.path.dirname(os.path.abspath(__file__))
    sources = {}
    for folder, _, names in os.walk(package):
        inside = os.path.relpath(folder, package)
        for name in names:
            module = name if inside == "." else f"{inside}/{name}"
            if name.endswith(".py") and module not in LEFT_OUT:
                sources[f"agent/{module}"] = os.path.join(folder, name)
    sources["pynvml.py"] = _find_pynvml()
    return sources


def _contents(sources: Dict[str, str]) -> Dict[str, bytes]:
    """Name in the archive -> what it holds there. Raises BundleError."""
    contents = {name: condense(_read(path)) for name, path in sources.items()}
    nvidia = contents.pop("pynvml.py")
    words = set(re.findall(r"\w+", b"\n".join(contents.values()).decode()))
    errors = {name for name in re.findall(r"\w+", nvidia.decode()) if name.startswith(ERRORS)}
    alone = {name: source for name, source in contents.items() if name[len("agent/") : -len(".py")] in ALONE}
    together = {name[len("agent/") :]: contents[name] for name in sorted(contents) if name not in alone}
    text = b"".join(packed.heading(name) + source for name, source in together.items())
    assert text.count(packed.MARK) == len(together), "no source has a line like a heading"
    return {
        **alone,
        f"agent/{packed.TEXT}": text,
        "pynvml.py": _used(nvidia, words | errors, _asked_of_nvidia(contents)),
        "agent/__init__.py": PACKAGE,
        "__main__.py": START,
    }


def _used(nvidia: bytes, words: Set[str], required: Set[str]) -> bytes:
    """What is left of NVIDIA's module. Raises BundleError when it has not all that is `required` of it."""
    left = only(nvidia, words)
    nodes = list(ast.walk(ast.parse(left)))
    missing = required - {getattr(node, "name", getattr(node, "id", "")) for node in nodes}
    if missing:
        names = ", ".join(sorted(missing))
        raise BundleError(f"the installed nvidia-ml-py has no {names}: pip install --upgrade nvidia-ml-py")
    return left


def _asked_of_nvidia(contents: Dict[str, bytes]) -> Set[str]:
    """The names that this package takes for granted, `nvml.NAME`; one got by getattr may be missing."""
    return {
        node.attr
        for source in contents.values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and getattr(node.value, "attr", getattr(node.value, "id", "")) in ("nvml", "_nvml", "pynvml")
        and NVIDIAS.match(node.attr)
    }


def _find_pynvml() -> str:
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise BundleError("nvidia-ml-py is not installed here: the agent needs its module pynvml")
    if b"def _nvmlGetFunctionPointer" not in _read(spec.origin):
        raise BundleError(f"{spec.origin} is not NVIDIA's: install nvidia-ml-py in its place")
    return spec.origin


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _fingerprint(sources: Dict[str, str]) -> str:
    digest = hashlib.sha256(START + PACKAGE)
    package = os.path.dirname(os.path.abspath(__file__))
    builders = {name: os.path.join(package, name) for name in LEFT_OUT}
    for name, path in sorted({**sources, **builders}.items()):
        status = os.stat(path)
        digest.update(os.fsencode(f"{name} {path} {status.st_size} {status.st_mtime_ns}\n"))
    return digest.hexdigest()[:32]


def _load(cache: str, key: str) -> Optional[Bundle]:
    try:
        name = next(name for name in os.listdir(cache) if name.startswith(f"{key}-"))
        data = _read(os.path.join(cache, name))
    except (OSError, StopIteration):
        return None
    sha256 = hashlib.sha256(data).hexdigest()
    return Bundle(data, sha256) if name == f"{key}-{sha256}.pyz" else None


def _store(cache: str, key: str, bundle: Bundle) -> None:
    os.makedirs(cache, exist_ok=True)
    for name in os.listdir(cache):
        if name.endswith(".pyz") and name[32:33] == "-":
            with contextlib.suppress(FileNotFoundError):  # another controller just did
                os.unlink(os.path.join(cache, name))
    files.write_bytes(os.path.join(cache, f"{key}-{bundle.sha256}.pyz"), bundle.data)

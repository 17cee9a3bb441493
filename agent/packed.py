"""Imports those modules of this package that stand in the archive as one text: so they are a quarter smaller.

The text is `modules.txt` beside this module: before each source a line with its path in the package. What is
needed alone is a file of its own in the archive, where Python finds it by itself (see `bundle.py`).
Tracebacks show lines and paths as if each were a file.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` costs a connection more than all else here
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

TEXT = "modules.txt"

MARK = b"\n=== "
"""How the line before a source begins, with the end of the line before it; no line of a source does."""

FOLDER = os.path.dirname(os.path.abspath(__file__))


def heading(path: str) -> bytes:
    """The line before a source."""
    return MARK + path.encode() + b"\n"


class Modules:
    """A finder and loader, as `importlib.abc` describes them."""

    def __init__(self) -> None:
        self._text: bytes | None = None
        self._importing = 0

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Where module `name` stands; None when it is not one of these."""
        del path, target
        package, _, inside = name.partition(".")
        if package != __package__ or not inside:
            return None
        inside = inside.replace(".", "/")
        for file, is_package in ((f"{inside}.py", False), (f"{inside}/__init__.py", True)):
            if heading(file) in self._read():
                from importlib.machinery import ModuleSpec

                origin = os.path.join(FOLDER, file)
                spec = ModuleSpec(name, self, origin=origin, is_package=is_package)  # type: ignore[arg-type]
                spec.has_location = True
                if spec.submodule_search_locations is not None:
                    spec.submodule_search_locations.append(os.path.dirname(origin))
                return spec
        self._forget()
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's source. Raises what it raises."""
        assert module.__spec__ is not None
        self._importing += 1
        try:
            exec(self._code(module.__spec__), vars(module))
        finally:
            self._importing -= 1
            self._forget()

    def get_source(self, name: str) -> str:
        """For tracebacks. Raises ImportError for a module that is not one of these."""
        spec = self.find_spec(name)
        if spec is None:
            raise ImportError(f"no module {name} here", name=name)
        source = self._source(spec)
        self._forget()
        return source.decode("utf-8")

    def is_package(self, name: str) -> bool:
        """Whether that module is one with modules in it."""
        spec = self.find_spec(name)
        self._forget()
        return spec is not None and spec.submodule_search_locations is not None

    def _code(self, spec: ModuleSpec) -> CodeType:
        assert spec.origin is not None
        code: CodeType = compile(self._source(spec), spec.origin, "exec", dont_inherit=True)
        return code

    def _source(self, spec: ModuleSpec) -> bytes:
        assert spec.origin is not None
        text, line = self._read(), heading(os.path.relpath(spec.origin, FOLDER))
        begin = text.index(line) + len(line)
        end = text.find(MARK, begin)
        return text[begin : end if end != -1 else len(text)]

    def _read(self) -> bytes:
        if self._text is None:
            self._text = __loader__.get_data(os.path.join(FOLDER, TEXT))  # type: ignore[name-defined]
        return self._text

    def _forget(self) -> None:
        """Give the memory back as soon as nothing is being imported: half a megabyte in each process."""
        if not self._importing:
            self._text = None


def install() -> None:
    """Let Python find these modules."""
    sys.meta_path.append(Modules())

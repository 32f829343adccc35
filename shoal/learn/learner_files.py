"""Learner files as modules that other processes can import.

`multiprocessing` names a class by its module, and a process that was started by spawn or forkserver imports that
module. The name of a learner file's module holds the file's path, and importing this module makes such names known.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

__path__: list[str] = []  # this module counts as a package, whose modules the finder below finds


def module_name(file: Path) -> str:
    """Return the name of a file's module: the file's own for people, then its path in hexadecimal."""
    shown = re.sub(r"\W", "_", file.stem)
    return f"{__name__}.{shown}_{str(file).encode().hex()}"


def file_of(name: str) -> Path | None:
    """Return the file of a module with such a name; None for any other."""
    parent, _, last = name.rpartition(".")
    try:
        return Path(bytes.fromhex(last.rpartition("_")[2]).decode()) if parent == __name__ else None
    except ValueError:
        return None


class _LearnerFiles(MetaPathFinder):
    """Finds the modules of learner files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = file_of(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


sys.meta_path.append(_LearnerFiles())

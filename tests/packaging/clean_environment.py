"""Environments that have a wheel of shoal and what it asks for, and nothing else of what is installed here."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Closure = dict[str, Distribution]


def closure(wheel: Distribution, *extras: str) -> Closure:
    """The packages that pip would install with a wheel of shoal, as they are installed here.

    Raises `PackageNotFoundError` for one that is not here: then this environment is older than pyproject.toml.
    """
    found: Closure = {}
    asked = [Requirement(f"shoal[{','.join(extras)}]")]
    seen: set[str] = set()
    while asked:
        one = asked.pop()
        if str(one) in seen:
            continue
        seen.add(str(one))
        name = canonicalize_name(one.name)
        there = wheel if name == "shoal" else found.setdefault(name, distribution(name))
        for requirement in map(Requirement, there.requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *one.extras)):
                asked.append(requirement)
    return found


def nbytes(packages: Closure) -> int:
    """Bytes on disk of all files of packages, those that Python has compiled included."""
    paths = {Path(str(one.locate_file(file))) for one in packages.values() for file in one.files or ()}
    return sum(path.stat().st_size for path in paths if path.exists())


class Environment:
    """A virtual environment with the wheel itself, and links to the packages that it asks for."""

    def __init__(self, folder: Path, wheel: Path, packages: Closure) -> None:
        self.folder = folder
        venv.create(folder, symlinks=True)
        python = str(folder / "bin" / "python")
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*install, str(wheel)], check=True, capture_output=True)
        site = next((folder / "lib").glob("python3*/site-packages"))
        for one in packages.values():
            for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
                if not (site / top).exists():
                    (site / top).symlink_to(str(one.locate_file(top)))

    def command(self, *arguments: str) -> list[str]:
        """One of its commands, with arguments."""
        return [str(self.folder / "bin" / arguments[0]), *arguments[1:]]

    def variables(self) -> dict[str, str]:
        """Nothing of this process's environment that shoal or Python would look at."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("SHOAL", "PYTHON", "PYTEST"))}
        return {**kept, "HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder), "OMP_NUM_THREADS": "1"}

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run one of its commands to its end."""
        command = self.command(*arguments)
        return subprocess.run(command, cwd=cwd, env=self.variables(), capture_output=True, text=True, check=False)

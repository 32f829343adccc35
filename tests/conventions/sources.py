"""The files that the conventions check: those that git tracks or would track, and the Python ones' syntax trees."""

import ast
import functools
import gc
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
PARENTS = ("coordinator", "edge_client", "peer", "dashboard")
"""Folders of components; each holds one package, `shoal_` and its name."""
PACKAGES = ("shoal", *(f"{parent}/shoal_{parent}" for parent in PARENTS))
PYTHON_PACKAGES = tuple(package for package in PACKAGES if "dashboard" not in package)
PURE = ("shoal/core", "shoal/algorithms", "shoal/schedules", "shoal/mixing", "shoal/selection")


class Finding(NamedTuple):
    """One thing that a rule counts, and where it stands. `size`: how much of it there is."""

    path: str
    line: int
    text: str
    size: int = 1

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def files(root: Path) -> list[Path]:
    """All files of a checkout but those that git ignores; of a folder without git, all of them."""
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout.decode()
        found = [root / name for name in listed.split("\0") if name]
    else:
        found = list(root.rglob("*"))
    return sorted({path for path in found if path.is_file()})


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """(path from the root, text) of every file that is text."""
    for path in files(root):
        try:
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def trees(root: Path, *folders: str) -> Iterator[tuple[str, ast.Module]]:
    """(path from the root, syntax tree) of every Python file, or of those in these folders."""
    for name, text in texts(root):
        if name.endswith(".py") and (not folders or name.startswith(tuple(f"{folder}/" for folder in folders))):
            yield name, _parsed(text)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.Module:
    """Parse a file once for all rules."""
    return _kept(lambda: ast.parse(text))


@functools.lru_cache(maxsize=4096)
def nodes(tree: ast.Module) -> list[ast.AST]:
    """Return all nodes of a file, as `ast.walk` does, once for all rules."""
    return _kept(lambda: list(ast.walk(tree)))


def _kept(make: Callable[[], T]) -> T:
    """Make what stays until the end; the collector would walk all of it again and again otherwise."""
    gc.disable()
    try:
        return make()
    finally:
        gc.freeze()
        gc.enable()


def dotted(node: ast.expr) -> str:
    """Return the name that an expression is, such as `np.random.seed`; empty for other expressions.

    `ast.unparse` takes ten times as long.
    """
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def plant(root: Path, sources: Mapping[str, str]) -> Path:
    """Write a small tree for a rule to look at."""
    for name, text in sources.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root

"""What the house rules look at: the files that git tracks or would track, and the syntax trees of the Python ones."""

import ast
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARENTS = ("coordinator", "edge_client", "peer", "dashboard")
"""Folders of components; each holds one package, `shoal_` and its name."""
PACKAGES = ("shoal", *(f"{parent}/shoal_{parent}" for parent in PARENTS))
PURE = ("shoal/core", "shoal/algorithms", "shoal/schedules", "shoal/mixing", "shoal/selection")


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
            yield name, ast.parse(text)


def plant(root: Path, sources: Mapping[str, str]) -> Path:
    """Write a small tree for a rule to look at."""
    for name, text in sources.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root

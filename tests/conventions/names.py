"""Names have one meaning each, and are words of the field."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.conventions.shape import COLLECTIONS
from tests.conventions.sources import PYTHON_PACKAGES, Finding, nodes, texts, trees

FOLDERS_MAX = 2
"""Folders that may use one file name."""
ENTRY_POINTS = {"__init__", "__main__"}

_WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
BANNED_WORDS = frozenset(_WORDS["anywhere"])
BANNED_NAMES = frozenset(_WORDS["names"])
PROSE = (".md", ".py", ".ts", ".tsx", ".toml", ".yaml", ".yml", ".html", ".sh", ".conf")
EXEMPT = ("tests/conventions/", "dashboard/src/api/schema.d.ts", "dashboard/package-lock.json")
FIXED_TERMS = re.compile(r"\bfcntl\.flock\b|\bflock\(|\bcarriage[ _]return\b", re.IGNORECASE)
"""Terms of libraries that contain a banned word."""
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def class_homes(root: Path) -> list[Finding]:
    """Return a finding for each class whose name another module has too."""
    homes: dict[str, list[tuple[str, int]]] = {}
    for path, tree in trees(root, *PYTHON_PACKAGES):
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append((path, node.lineno))
    return [
        Finding(places[0][0], places[0][1], f"{name} is also in " + ", ".join(path for path, _ in places[1:]))
        for name, places in sorted(homes.items())
        if len({path for path, _ in places}) > 1
    ]


def file_names(root: Path) -> list[Finding]:
    """Return a finding for each file name that more than `FOLDERS_MAX` folders use."""
    places: dict[str, list[str]] = {}
    for name, _ in texts(root):
        path = PurePosixPath(name)
        exempt = path.stem in ENTRY_POINTS or path.parent.as_posix() in COLLECTIONS
        if path.suffix == ".py" and not exempt and name.startswith(tuple(f"{one}/" for one in PYTHON_PACKAGES)):
            places.setdefault(path.name, []).append(name)
    return [
        Finding(found[0], 1, f"{name} is also " + ", ".join(found[1:]))
        for name, found in sorted(places.items())
        if len(found) > FOLDERS_MAX
    ]


def banned_words(root: Path) -> list[Finding]:
    """Return each place with a banned word (line 0: the file's name), and each definition that is named by one."""
    prose = [
        Finding(name, number, f"the word {word!r}")
        for name, text in texts(root)
        if name.endswith(PROSE) and not name.startswith(EXEMPT)
        for number, line in enumerate([PurePosixPath(name).stem, *text.splitlines()])
        for word in words_of(FIXED_TERMS.sub("", line))
        if word in BANNED_WORDS
    ]
    names = [
        Finding(path, line, f"the name {name!r}")
        for path, line, name in defined_names(root)
        if BANNED_NAMES.intersection(words_of(name))
    ]
    return sorted({*prose, *names})


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text in lower case; `PeerHost` and `peer_host` are two each."""
    return (match.group().lower() for match in WORD.finditer(text))


def defined_names(root: Path) -> Iterator[tuple[str, int, str]]:
    """Yield (path, line, name) of every module, class and function of the packages."""
    for path, tree in trees(root, *PYTHON_PACKAGES):
        yield path, 1, PurePosixPath(path).stem
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node.lineno, node.name

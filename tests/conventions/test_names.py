"""Counter-examples for names: classes with two homes, file names everywhere, banned words."""

from pathlib import Path

import pytest

from tests.conventions import names
from tests.conventions.sources import plant


def test_classes_with_two_homes_are_found(tmp_path: Path) -> None:
    plant(tmp_path, {"shoal/a.py": "class Lease: ...\nclass Alone: ...\n", "tests/a.py": "class Alone: ...\n"})
    plant(tmp_path, {"peer/shoal_peer/b.py": "def f():\n    class Lease: ...\n"})
    (found,) = names.class_homes(tmp_path)
    assert found.text == "Lease is also in shoal/a.py"


def test_file_names_of_three_folders_are_found(tmp_path: Path) -> None:
    folders = ("shoal/core", "shoal/sim", "edge_client/shoal_edge_client", "shoal/cli/commands")
    plant(tmp_path, {f"{folder}/peers.py": "" for folder in folders})
    plant(tmp_path, {f"{folder}/__init__.py": "" for folder in folders})
    plant(tmp_path, {f"{folder}/models.py": "" for folder in folders[1:]})  # one of these three is a collection
    assert [one.text.partition(" ")[0] for one in names.file_names(tmp_path)] == ["peers.py"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/a.md", "The por|ch listens.\n"),
        ("shoal/a.py", "x = 1  # Rum|ours go round\n"),
        ("dashboard/src/a.tsx", "const house|holdSize = 1\n"),
        ("shoal/a.py", "class Kee|psake: ...\n"),
        ("shoal/jury|.py", ""),
        ("shoal/de|sk.py", ""),
        ("shoal/a.py", "def look_else|where(): ...\n"),
        ("shoal/a.py", "class Wat|ch: ...\n"),
    ],
)
def test_banned_words_are_found(tmp_path: Path, path: str, text: str) -> None:
    """The bar keeps this file itself within the rule."""
    plant(tmp_path, {path.replace("|", ""): text.replace("|", "")})
    assert names.banned_words(tmp_path) != []


def test_ordinary_words_are_none(tmp_path: Path) -> None:
    prose = "A peer turns to the coordinator and watches its books; the warehouse; airlanes.\n"
    code = "import fcntl\nfcntl.flock(file, fcntl.LOCK_EX)\n"
    assert names.banned_words(plant(tmp_path, {"docs/a.md": prose, "shoal/a.py": code})) == []

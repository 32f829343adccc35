"""The list of mutations cannot decay: each still fits its file, breaks a listed promise, and names tests that exist."""

from pathlib import Path

import pytest

from tests.conventions.sources import ROOT
from tests.support.essential import names, promises
from tests.support.mutations import Mutation, mutations

ALL = mutations()


def faults(mutation: Mutation, root: Path) -> list[str]:
    """Return what is wrong with a mutation of a source tree."""
    found = (root / mutation.file).read_text(encoding="utf-8").count(mutation.old)
    wrong = [] if found == 1 else [f"{mutation.file} contains the text to replace {found} times"]
    wrong += ["it changes nothing"] if mutation.old == mutation.new else []
    wrong += [] if mutation.promise in promises() else [f"essential.toml has no promise {mutation.promise!r}"]
    wrong += [] if mutation.tests else ["it names no test"]
    return wrong + [f"there is no test {test}" for test in mutation.tests if not is_there(test, root)]


def is_there(test: str, root: Path) -> bool:
    """Return whether a file of tests, or the file with the function of a test, exists."""
    _, function, file = names(test)
    name = function.rpartition("::")[2]
    return (root / file).is_file() and (name == file or f"def {name}(" in (root / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("mutation", ALL, ids=lambda one: one.change)
def test_a_mutation_fits_the_sources(mutation: Mutation) -> None:
    assert faults(mutation, ROOT) == []


def test_every_promise_is_broken_by_a_mutation() -> None:
    assert {one.promise for one in ALL} == set(promises())


def test_no_mutation_is_listed_twice() -> None:
    assert len({one.change for one in ALL}) == len({(one.file, one.old, one.new) for one in ALL}) == len(ALL)


def test_a_mutation_that_does_not_fit_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("sync()\nsync()\n")
    (tmp_path / "test_a.py").write_text("def test_one() -> None: ...\n")
    tests = ("test_a.py::test_one", "test_a.py::test_two", "test_b.py")
    assert faults(Mutation("none", "skip a sync", "a.py", "sync()\n", "", tests), tmp_path) == [
        "a.py contains the text to replace 2 times",
        "essential.toml has no promise 'none'",
        "there is no test test_a.py::test_two",
        "there is no test test_b.py",
    ]

"""The essential tests of processes, browsers and trainings, each for a promise of the README: `make test` runs them."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

FILE = Path(__file__).parents[1] / "essential.toml"
MUTATIONS = FILE.with_name("mutations.toml")


@functools.cache
def promises() -> dict[str, tuple[str, ...]]:
    """Return the tests of each promise, as pytest names them: cases, functions or files."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {promise: tuple(tests) for promise, tests in found.items()}


@functools.cache
def _tests() -> frozenset[str]:
    return frozenset(test for tests in promises().values() for test in tests)


def protects(nodeid: str) -> bool:
    """Return whether a test, the function of which it is one case, or its file is listed."""
    return not _tests().isdisjoint(names(nodeid))


@functools.cache
def mutated() -> frozenset[str]:
    """Return the tests that mutations name."""
    found = tomllib.loads(MUTATIONS.read_text(encoding="utf-8"))["mutation"]
    return frozenset(test for mutation in found for test in mutation["tests"])


def missing(collected: frozenset[str]) -> list[str]:
    """Return the tests of both lists whose file was collected as a whole and which are not in it."""
    found = {name for nodeid in collected for name in names(nodeid)}
    return sorted(test for test in _tests() | mutated() if test.partition("::")[0] in found and test not in found)


def names(nodeid: str) -> tuple[str, str, str]:
    """Return the names under which a test may be listed: of the case, of its function, of its file."""
    return nodeid, nodeid.partition("[")[0], nodeid.partition("::")[0]

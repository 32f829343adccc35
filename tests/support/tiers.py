"""Tiers of tests, derived from what a test, its fixtures and the helpers that they call use.

check     the conventions: `tests/conventions`, which may ask git and start interpreters
unit      neither a child process nor a socket nor a sleep; `tests/support/unit_guard.py` fails one that uses them
process   starts a process, listens on a socket or needs another server
browser   drives a real Chromium
nightly   swarms and soaks at full length (`tests/support/sampling.py`)

`required` are the tests of `make test`: checks, unit tests but long trainings and cases beyond a sample, and those of
`tests/essential.toml`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import essential

TIERS = ("check", "unit", "process", "browser", "nightly")
CHECKS = "tests/conventions/"
BROWSER_FIXTURES = {"browser"}
DECLARED = {"processes", "sockets"}
"""Fixtures that say what a test uses where no name does."""
FOREIGN = {"postgresql", "s3"}
"""Parameters of fixtures that ask for another server."""
TRAININGS = {"tests.algorithms.averaging_runs", "tests.learn.federation"}
"""Modules of helpers that train until a figure of a paper is reached, for seconds."""
STARTERS = {
    "Cluster",
    "CommandProcess",
    "Forked",
    "EdgeListener",
    "Listener",
    "PeerTrainer",
    "Popen",
    "ProcessTrainer",
    "S3",
    "ThreadingHTTPServer",
    "TrainingProcess",
    "bind",
    "create_server",
    "fork",
    "forkserver",
    "free_port",
    "free_ports",
    "get_context",
    "in_processes",
    "inside",
    "listen",
    "process_group",
    "serve_peer",
    "start_server",
    "subprocess",
    "uvicorn",
}
"""Names by which a process is started or a socket listens."""


def assign(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and those of `make test` as `required`."""
    for item in items:
        names = names_in(item)
        tier = tier_of(item, names)
        item.add_marker(tier)
        if is_required(item, tier, names):
            item.add_marker("required")


def is_required(item: pytest.Item, tier: str, names: set[str]) -> bool:
    """Return whether `make test` runs a test."""
    if tier == "nightly":
        return False
    if essential.protects(item.nodeid):
        return True
    extended = item.get_closest_marker("extended") or names & TRAININGS
    return tier == "check" or (tier == "unit" and not extended)


def tier_of(item: pytest.Item, names: set[str]) -> str:
    """Return the tier of one test."""
    if item.get_closest_marker("nightly"):
        return "nightly"
    if item.nodeid.startswith(CHECKS):
        return "check"
    if names & BROWSER_FIXTURES:
        return "browser"
    starts = names & (STARTERS | DECLARED) or FOREIGN & parameters(item)
    return "process" if starts else "unit"


def names_in(item: pytest.Item) -> set[str]:
    """Return the fixtures of a test, and all names that it, they and their helpers mention."""
    names = set(getattr(item, "fixturenames", ()))
    names |= uses(item.function) if isinstance(item, pytest.Function) else set()
    for definitions in getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).values():
        names |= uses(definitions[-1].func)
    return names


def parameters(item: pytest.Item) -> set[str]:
    """Return the texts among a test's parameters."""
    call = getattr(item, "callspec", None)
    return {value for value in call.params.values() if isinstance(value, str)} if call else set()


def tier_of_report(report: pytest.TestReport) -> str:
    """Return the tier of a test that has run, in whichever worker."""
    return next((tier for tier in reversed(TIERS) if tier in report.keywords), "unit")


@functools.cache
def uses(function: Any) -> frozenset[str]:
    """Return all names that a function mentions, and those that the helpers of the tests mention which it names.

    The names of the helpers' modules are among them, and those of the helpers with their modules.
    """
    seen: set[Any] = set()
    names: set[str] = set()
    todo = [function]
    while todo:
        one = todo.pop()
        one = getattr(one, "__wrapped__", one)
        if one in seen:
            continue
        seen.add(one)
        names |= {one.__module__, f"{one.__module__}.{one.__qualname__}"}
        for base in one.__mro__[1:] if isinstance(one, type) else ():
            names.add(base.__name__)
            todo += [base] if is_helper(base) else []
        for code, module in codes(one):
            names.update(code.co_names)
            found = (module.get(name) for name in code.co_names)
            todo += [thing for thing in found if is_helper(thing)]
    return frozenset(names)


def codes(thing: Any) -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """Yield the code of a function, or of all methods of a class, with nested functions, and the globals of each."""
    functions = [thing] if isinstance(thing, types.FunctionType) else list(vars(thing).values())
    for one in functions:
        function = getattr(one, "__func__", getattr(one, "fget", one))
        todo = [function.__code__] if isinstance(function, types.FunctionType) else []
        while todo:
            code = todo.pop()
            yield code, function.__globals__
            todo += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def is_helper(thing: Any) -> bool:
    """Return whether something is a function, also one with a cache, or a class of the tests."""
    is_code = isinstance(getattr(thing, "__wrapped__", thing), types.FunctionType | type)
    return is_code and str(getattr(thing, "__module__", "")).startswith("tests.")


class Clock:
    """The seconds that each tier's tests have taken, with setup and teardown, all workers together."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(TIERS, 0.0)
        self.counts = dict.fromkeys(TIERS, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tier = tier_of_report(report)
        self.seconds[tier] += report.duration
        self.counts[tier] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print one line for each tier that ran."""
        terminalreporter.section("tiers")
        for tier in TIERS:
            if self.counts[tier]:
                terminalreporter.write_line(f"{tier:8} {self.counts[tier]:5} tests {self.seconds[tier]:6.0f} s")

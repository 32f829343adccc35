"""Tiers of tests, derived from what a test, its fixtures and the helpers that they call use.

unit      neither a process nor a server of its own
process   starts a process or listens on a socket
whole     a whole run: training until a figure is reached, a demo, a process in a sample of a sweep
service   needs a foreign program: PostgreSQL, an S3 server, Helm, a build of the wheel
browser   drives a real Chromium; those of `ESSENTIAL` are marked `essential` too
nightly   the rest of the sweeps (`at_night`)
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import pytest

BUDGETS_S = {"unit": 300, "process": 900, "whole": 900, "service": 600, "browser": 900, "nightly": 7200}
"""Seconds of tests that a tier may take, all workers together."""
ESSENTIAL = ("test_live.py", "test_control.py", "test_new_job.py", "test_join.py", "test_coordinator_killed.py")
"""Files of tests/dashboard with what a user cannot do without."""
BROWSER_FIXTURES = {"browser"}
WHOLE_RUNS = {
    "Machines",
    "demo_interrupted",
    "tests.algorithms.averaging_runs",
    "tests.learn.federation",
    "tests.peer.test_processes.Process",
    "tests.peering.scenario.Process",
    "tmpdir_of_demo",
}
"""Helpers, their modules and fixtures that train real networks, kill nodes, run a demo or follow the tutorial."""
SERVICES = {"Cluster", "S3", "cluster", "s3", "fleet", "helm", "wheel", "sdist"}
"""Names of helpers and fixtures that start a foreign program."""
STARTERS = {
    "Forked",
    "Listener",
    "Popen",
    "ProcessTrainer",
    "ThreadingHTTPServer",
    "bind",
    "create_server",
    "fork",
    "forkserver",
    "get_context",
    "in_processes",
    "inside",
    "start_server",
    "subprocess",
    "uvicorn",
}
"""Names by which a process is started or a socket listens."""


def assign(items: list[pytest.Item]) -> None:
    """Mark each test with its tier."""
    for item in items:
        tier = tier_of(item)
        item.add_marker(tier)
        if tier == "browser" and item.path.name in ESSENTIAL:
            item.add_marker("essential")


def tier_of(item: pytest.Item) -> str:
    """Return the tier of one test."""
    if item.get_closest_marker("nightly"):
        return "nightly"
    names = set(getattr(item, "fixturenames", ()))
    if names & BROWSER_FIXTURES:
        return "browser"
    names |= uses(item.function) if isinstance(item, pytest.Function) else set()
    for definitions in getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).values():
        names |= uses(definitions[-1].func)
    if names & SERVICES:
        return "service"
    starts = bool(names & STARTERS)
    if names & WHOLE_RUNS or (starts and item.get_closest_marker("sweep")):
        return "whole"
    return "process" if starts else "unit"


def tier_of_report(report: pytest.TestReport) -> str:
    """Return the tier of a test that has run, in whichever worker."""
    return next((tier for tier in reversed(BUDGETS_S) if tier in report.keywords), "unit")


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
    """Return whether something is a function or a class of the tests."""
    return isinstance(thing, types.FunctionType | type) and str(getattr(thing, "__module__", "")).startswith("tests.")


class Clock:
    """The seconds that each tier's tests have taken, with setup and teardown."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(BUDGETS_S, 0.0)
        self.counts = dict.fromkeys(BUDGETS_S, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tier = tier_of_report(report)
        self.seconds[tier] += report.duration
        self.counts[tier] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print one line for each tier that ran."""
        terminalreporter.section("tiers")
        for tier, budget_s in BUDGETS_S.items():
            if self.counts[tier]:
                spent = f"{self.counts[tier]:5} tests {self.seconds[tier]:6.0f} s of {budget_s} s"
                over = "  OVER ITS BUDGET" if self.seconds[tier] > budget_s else ""
                terminalreporter.write_line(f"{tier:8} {spent}{over}")

"""Tests wait for events: no sleep, no short limit in seconds, and no clock in an assertion."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conventions.sources import ROOT, nodes, plant, trees

LEAST_S = 30
"""A limit is only against hanging, so none is shorter."""

SLEEPS = {"time.sleep", "asyncio.sleep"}
CLOCKS = {"time.time", "time.monotonic", "time.perf_counter"}
PROCESSOR_CLOCKS = {"time.thread_time", "time.process_time"}
"""A pause of the collector, or of the whole machine, counts in these too."""
LIMITED = {"join", "settimeout", "timeout", "wait", "wait_for", "create_connection"}
"""Functions whose arguments without a name are limits."""
LIMITS = {"timeout", "patience_s"}
"""Names of arguments that are limits, unless they are filled into a text."""

EXCEPTIONS = {
    "tests/support/waiting.py": "it waits for all others",
    "tests/support/learners.py": "trainings that take a while, in processes of their own",
    "tests/peer/toy.py": "the same",
    "tests/peer/line.py": "the same",
    "tests/sim/worker_learners.py": "the same",
    "tests/conventions/test_tiers.py": "it shows that the unit tier forbids to sleep",
    "tests/cli/test_python_client.py": "the time-out of a client is what it tests",
}


def impatience(root: Path) -> list[str]:
    """Return the sleeps, short limits and asserted times in tests."""
    return [
        f"{name}:{line}: {what}"
        for name, tree in trees(root, "tests")
        if name not in EXCEPTIONS
        for line, what in impatient_nodes(tree)
    ]


def impatient_nodes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of each in one file."""
    for node in nodes(tree):
        if isinstance(node, ast.Assert) and CLOCKS & {ast.unparse(one.func) for one in calls(node)}:
            yield node.lineno, "asserts a time: prove it by an event, a count or a clock of the test's"
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in PROCESSOR_CLOCKS:
                yield node.lineno, f"{name}: count the work instead (tests/wire/test_hostile.py)"
            if name in SLEEPS and not (node.args and is_number(node.args[0], 0, 0)):
                yield node.lineno, f"{name}: wait for the event, or use tests.support.waiting"
            if any(is_number(limit, 1e-9, LEAST_S) for limit in limits(name, node)):
                yield node.lineno, f"{name} has a short limit: use PATIENCE_S of tests.support.waiting"


def calls(tree: ast.AST) -> list[ast.Call]:
    """Return the calls in a part of a file."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def limits(name: str, call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call that limit how long it waits."""
    last = name.rpartition(".")[2]
    unnamed = call.args if last in LIMITED else []
    return [*unnamed, *(keyword.value for keyword in call.keywords if keyword.arg in LIMITS and last != "format")]


def is_number(node: ast.expr, least: float, most: float) -> bool:
    """Return whether an expression is a number in that range, written out."""
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and least <= node.value <= most


def test_tests_wait_for_events() -> None:
    assert impatience(ROOT) == []


def test_every_exception_is_needed() -> None:
    needed = {name for name, tree in trees(ROOT, "tests") if name in EXCEPTIONS and list(impatient_nodes(tree))}
    assert needed == EXCEPTIONS.keys()


@pytest.mark.parametrize(
    "source",
    [
        "time.sleep(1)\n",
        "await asyncio.sleep(pause_s)\n",
        "thread.join(5)\n",
        "assert event.wait(0.5)\n",
        "asyncio.wait_for(run(), 20.0)\n",
        "subprocess.run(command, timeout=10)\n",
        "until('it', found, patience_s=5.0)\n",
        "assert time.monotonic() - started < 4\n",
        "started = time.thread_time()\n",
    ],
)
def test_impatience_is_found(tmp_path: Path, source: str) -> None:
    assert len(impatience(plant(tmp_path, {"tests/bad.py": source}))) == 1


def test_patience_passes(tmp_path: Path) -> None:
    source = (
        "thread.join(PATIENCE_S)\nevent.wait()\nasyncio.sleep(0)\nraw.settimeout(60)\n', '.join(names)\n"
        "Neighbors('ring', exchange_timeout_s=5.0)\nstarted = time.monotonic()\n"
    )
    assert impatience(plant(tmp_path, {"tests/fine.py": source, "shoal/any.py": "time.sleep(1)\n"})) == []

"""Rules of every test: tiers and their guard, no skips where all is there, one torch thread, a clean environment."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.support import essential, tiers
from tests.support.unit_guard import GUARD

# With SHOAL_REQUIRE_ALL=1 (.ci/run sets it) a test that would skip for want of a part fails instead.
REQUIRE_ALL = pytest.StashKey[bool]()

# The suite runs in several processes; a torch that starts a thread for each core in each of them only gets slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell ignores SIGINT in what it runs in the background; so would each process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Reproducible by default; `--hypothesis-profile=explore` looks for new examples. A shared machine meets no deadline.
settings.register_profile("shoal", derandomize=True, deadline=None, print_blob=True, max_examples=50)
settings.register_profile("explore", parent=settings.get_profile("shoal"), derandomize=False, max_examples=500)
settings.load_profile("shoal")


def pytest_configure(config: pytest.Config) -> None:
    """Take the suite's one setting from the environment, and a person's own settings of shoal out of it."""
    given = os.environ.get("SHOAL_REQUIRE_ALL", "") not in {"", "0"}
    config.stash[REQUIRE_ALL] = getattr(config, "workerinput", {}).get("require_all", given)
    for name in [name for name in os.environ if name.startswith("SHOAL_")]:
        del os.environ[name]
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(tiers.Clock(), "tiers")
    GUARD.install()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector, and keep it from looking at a million objects that stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test the tier that its fixtures say, before `-m` selects."""
    tiers.assign(items)
    whole_files = not any("::" in argument for argument in config.args)
    if whole_files and (gone := essential.missing(frozenset(item.nodeid for item in items))):
        raise pytest.UsageError(
            f"{essential.FILE.name} or {essential.MUTATIONS.name} lists tests that are not there: {', '.join(gone)}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a unit test that does what its tier forbids."""
    if not item.get_closest_marker("unit"):
        return (yield)
    GUARD.begin()
    try:
        return (yield)
    finally:
        if used := GUARD.end():
            pytest.fail(f"a unit test {'; '.join(used)}: see docs/testing.md", pytrace=False)


@pytest.fixture
def processes() -> None:
    """Declare that a test starts processes, where no name says so (tests/support/tiers.py)."""


@pytest.fixture
def sockets() -> None:
    """Declare that a test opens connections, where no name says so (tests/support/tiers.py)."""


@pytest.fixture
def three_threads() -> Iterator[None]:
    """Let torch have three threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker process of xdist, which starts with the cleaned environment."""
    node.workerinput["require_all"] = node.config.stash[REQUIRE_ALL]


def forbidden_skip(longrepr: object) -> str:
    """The message of a test that may not skip; pytest's longrepr of a skip is (file, line, reason)."""
    reason = longrepr[2] if isinstance(longrepr, tuple) else longrepr
    return f"{reason}: skipping counts as a failure under SHOAL_REQUIRE_ALL=1; install what is missing"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure where nothing may be missing; an expected failure stays one."""
    report = yield
    if item.config.stash[REQUIRE_ALL] and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = forbidden_skip(report.longrepr)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file that skips itself (`pytest.importorskip`)."""
    report = yield
    if collector.config.stash[REQUIRE_ALL] and report.skipped:
        report.outcome = "failed"
        report.longrepr = forbidden_skip(report.longrepr)
    return report

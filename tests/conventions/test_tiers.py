"""A test's tier follows from what it, its fixtures and their helpers use; a unit test that uses more is found out."""

import asyncio
import functools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer

import pytest

from tests.support.essential import missing, mutated, promises
from tests.support.tiers import STARTERS, uses
from tests.support.unit_guard import GUARD
from tests.support.waiting import until


def listens() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


class Serving:
    def start(self) -> ThreadingHTTPServer:
        return ThreadingHTTPServer(("", 0), lambda *_: None)


class Quiet(ThreadingHTTPServer):
    """Listens where it is made."""


def by_a_base_class() -> Quiet:
    return Quiet(("", 0), lambda *_: None)


def by_a_helper() -> None:
    listens().close()


@functools.cache
def cached() -> socket.socket:
    return listens()


def by_a_cached_helper() -> None:
    cached().close()


def by_a_class() -> None:
    Serving()


def by_a_nested_function() -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable], check=True)


def by_nothing() -> int:
    return len(sys.argv)


@pytest.mark.parametrize(
    "function", [listens, by_a_helper, by_a_cached_helper, by_a_class, by_a_base_class, by_a_nested_function]
)
def test_starters_are_found_through_helpers(function: Callable[[], object]) -> None:
    assert uses(function) & STARTERS


def test_a_function_that_starts_nothing_is_none() -> None:
    assert not uses(by_nothing) & STARTERS


def connects() -> None:
    with listens() as server, socket.create_connection(server.getsockname()):
        pass


def in_a_thread() -> None:
    thread = threading.Thread(target=by_a_helper)
    thread.start()
    thread.join()


def forks() -> None:
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


FORBIDDEN: dict[str, Callable[[], object]] = {
    "socket.bind": by_a_helper,
    "socket.connect": connects,
    "in a thread": in_a_thread,
    "subprocess.Popen": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "os.fork": forks,
    "time.sleep": lambda: time.sleep(0.001),
    "asyncio.sleep": lambda: asyncio.run(asyncio.sleep(0.001)),
}


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_a_unit_test_must_not_do_is_found(name: str) -> None:
    GUARD.begin()
    FORBIDDEN[name]()
    assert GUARD.end()


def test_what_a_unit_test_may_do_is_not(tmp_path_factory: pytest.TempPathFactory) -> None:
    GUARD.begin()
    until("a while to pass", iter([False, True]).__next__)
    asyncio.run(asyncio.sleep(0))
    (tmp_path_factory.mktemp("unit") / "file").write_text("text")
    assert not GUARD.end()


def test_a_thread_of_an_earlier_test_is_not_blamed_on_the_next() -> None:
    begin, done = threading.Event(), threading.Event()

    def late() -> None:
        begin.wait()
        by_a_helper()
        done.set()

    threading.Thread(target=late).start()
    GUARD.begin()
    begin.set()
    done.wait()
    assert not GUARD.end()


@pytest.mark.parametrize("listed", [frozenset(t for tests in promises().values() for t in tests), mutated()])
def test_a_listed_test_that_is_gone_is_named(listed: frozenset[str]) -> None:
    test = next(test for test in sorted(listed) if "::" in test)
    file = test.partition("::")[0]
    assert test in missing(frozenset({f"{file}::test_another"}))
    assert test not in missing(frozenset({test}))
    assert test not in missing(frozenset({"tests/elsewhere.py::test_another"}))


@pytest.mark.parametrize("promise", promises())
def test_a_promise_has_a_test(promise: str) -> None:
    assert promises()[promise]


def test_tests_are_marked(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("check")
    assert request.node.get_closest_marker("required")

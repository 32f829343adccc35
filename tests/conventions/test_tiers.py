"""A test's tier follows from what it, its fixtures and their helpers use."""

import socket
import subprocess
import sys
from collections.abc import Callable
from http.server import ThreadingHTTPServer

import pytest

from tests.learn.federation import digit_learners
from tests.support.tiers import STARTERS, uses


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


def by_a_class() -> None:
    Serving()


def by_a_nested_function() -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable], check=True)


def by_nothing() -> int:
    return len(sys.argv)


@pytest.mark.parametrize("function", [listens, by_a_helper, by_a_class, by_a_base_class, by_a_nested_function])
def test_starters_are_found_through_helpers(function: Callable[[], object]) -> None:
    assert uses(function) & STARTERS


def test_a_function_that_starts_nothing_is_none() -> None:
    assert not uses(by_nothing) & STARTERS


@pytest.mark.sweep
def test_a_process_in_a_sweep_is_a_whole_run(request: pytest.FixtureRequest) -> None:
    assert subprocess.run([sys.executable, "-c", ""], check=True).returncode == 0
    assert request.node.get_closest_marker("whole")


@pytest.mark.sweep
def test_a_sweep_without_processes_is_none(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("unit")


def test_training_on_real_data_is_a_whole_run(request: pytest.FixtureRequest) -> None:
    assert "tests.learn.federation" in uses(digit_learners)
    assert request.node.get_closest_marker("whole")


def test_tests_are_marked(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("unit")

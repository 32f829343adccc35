"""Ctrl-C once, twice, and SIGTERM, on a real process: `python -m shoal_edge_client`."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.runtime.durable_files import no_crash
from shoal.runtime.threads import SerialExecutor
from shoal_edge_client.process import EdgeProcess
from tests.edge_client.conftest import Place
from tests.support.learners import VectorLearner
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def process(place: Place, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """A node's process that holds in its training for as long as the file `hold` is there."""
    hold = place.folder / "hold"
    hold.touch()
    given = {
        "URL": place.url,
        "TOKEN": "sht_one",
        "NAME": "a",
        "STATE_DIR": str(place.folder / "state"),
        "RETRY_PAUSE_MAX_S": "0.1",
        "LEARNER": f"{ROOT / 'tests/support/learners.py'}:learner",
        "OPTIONS": f'{{"hold": "{hold}"}}',
        **settings,
    }
    environment = {**os.environ, **{f"SHOAL_EDGE__{key}": value for key, value in given.items()}}
    command = [sys.executable, "-m", "shoal_edge_client"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def training(place: Place) -> None:
    """Wait until the node is in the middle of its training."""
    place.coordinator.wait(lambda: place.coordinator.beats)


def test_ctrl_c_hands_the_order_back(place: Place) -> None:
    with process(place) as node:
        training(place)
        node.send_signal(signal.SIGINT)
        said = node.communicate(timeout=PATIENCE_S)[1]
        assert node.returncode == 130, said
    assert place.coordinator.left == ["a"]
    assert "Traceback" not in said
    assert "handing my tasks back" in said
    member = place.coordinator.hubs["j"].roster["a"]
    assert (member.is_present, member.task) == (False, None)


def test_ctrl_c_delivers_what_is_ready(place: Place) -> None:
    """The answer is lost again and again; Ctrl-C comes, and the report still gets through before the node goes."""
    coordinator = place.coordinator
    faults = [coordinator.plant("503", "POST", "/jobs/j/reports", retry_after="1")]
    with process(place) as node:
        assert faults[0].hit.wait(PATIENCE_S)
        node.send_signal(signal.SIGINT)
        said = node.communicate(timeout=PATIENCE_S)[1]
        assert node.returncode == 130, said
    assert len(coordinator.counted) == 1  # the initial model
    assert coordinator.left == ["a"]


def test_ctrl_c_twice_is_now(place: Place) -> None:
    """A report that would be given an hour to get through is not waited for."""
    coordinator = place.coordinator
    faults = [coordinator.plant("503", "POST", "/jobs/j/reports") for _ in range(5000)]
    with process(place, SHUTDOWN_UPLOAD_S="3600") as node:
        assert faults[0].hit.wait(PATIENCE_S)
        node.send_signal(signal.SIGINT)
        assert "handing my tasks back" in next(line for line in node.stderr or () if "handing" in line)
        node.send_signal(signal.SIGINT)
        assert node.wait(timeout=PATIENCE_S) == 130
    assert coordinator.left == []


def test_a_learner_that_does_not_listen_keeps_nobody(place: Place) -> None:
    with process(place, OPTIONS='{"fault": "deaf"}') as node:
        training(place)
        node.send_signal(signal.SIGINT)
        assert node.wait(timeout=PATIENCE_S) == 130
    assert place.coordinator.left == ["a"]


@pytest.mark.parametrize("busy", [True, False])
def test_the_interpreter_is_not_torn_down_under_a_training(
    place: Place, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """A thread deep in C++ would crash it; then there would be another exit code."""
    at_exit: list[Callable[[], None]] = []
    codes: list[int] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.setattr(os, "_exit", codes.append)
    running = EdgeProcess(place.settings(), VectorLearner(), no_crash)
    running._code = 130
    running._exit_at_end()
    monkeypatch.setattr(SerialExecutor, "busy", busy)
    at_exit[0]()
    assert codes == [130] * busy


def test_sigterm_lets_the_work_be_done(place: Place) -> None:
    coordinator = place.coordinator
    with process(place, SHUTDOWN_TRAIN_S="3600") as node:
        training(place)
        node.send_signal(signal.SIGTERM)
        assert any("ending" in line for line in node.stderr or ())
        (place.folder / "hold").unlink()
        assert node.wait(timeout=PATIENCE_S) == 0
    assert len(coordinator.counted) == 2  # the initial model, and the round that was in hand
    assert coordinator.left == ["a"]


def test_sigterm_does_not_wait_for_ever(place: Place) -> None:
    with process(place, SHUTDOWN_TRAIN_S="0.2", SHUTDOWN_UPLOAD_S="0.1") as node:
        training(place)
        node.send_signal(signal.SIGTERM)
        assert node.wait(timeout=PATIENCE_S) == 0
    assert len(place.coordinator.counted) == 1
    assert place.coordinator.left == ["a"]


def test_a_second_process_with_the_same_state_is_refused(place: Place) -> None:
    with process(place):
        training(place)
        with process(place) as second:
            said = second.communicate(timeout=PATIENCE_S)[1]
            assert second.returncode == 1
    assert "another edge client works with" in said
    assert "hint:" in said


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        ({"TOKEN": "sht_wrong"}, 3, "token is unknown"),
        ({"TOKEN": ""}, 3, "not known at"),
        ({"URL": "http://127.0.0.1:9", "COORDINATOR_TIMEOUT_S": "0.2"}, 3, "cannot be reached"),
        ({"URL": "http://9.9.9.9:8080"}, 3, "plain http to the public address"),
        ({"LEARNER": "nowhere.py:learner"}, 2, "no file nowhere.py"),
        ({"LEARNER": ""}, 2, "no learner"),
        ({"NAME": "Not A Name"}, 2, "a name has 1 to 63"),
        ({"NMAE": "a"}, 2, "did you mean 'name'?"),
        ({"JOBS": '["other"]'}, 1, "no job of that name"),
        ({"STATE_DIR": "/proc/nowhere"}, 1, "/proc/nowhere"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(place: Place, settings: dict[str, str], code: int, text: str) -> None:
    with process(place, **settings) as node:
        said = node.communicate(timeout=PATIENCE_S)[1]
        assert node.returncode == code, said
    assert text in said
    assert "Traceback" not in said

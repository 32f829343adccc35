"""Signals at every instant: the exit code is 130, and neither a process nor a folder is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shoal.cli.process import signals
from shoal.cli.process.child_of_parent import PARENT
from tests.cli.conftest import process
from tests.conventions.sources import ROOT
from tests.support.sampling import nightly
from tests.support.waiting import pause

LEFT_S = 100

# Send a signal to this very process before or after a function is called, once or twice.
INTERRUPTING = """
import importlib, os, sys
place, when, number, times, *arguments = sys.argv[1:]
module, _, path = place.partition(":")
owner = importlib.import_module(module)
*outer, name = path.split(".")
for part in outer:
    owner = getattr(owner, part)
real, left = getattr(owner, name), [1]
def signalled():
    if left:
        left.pop()
        for _ in range(int(times)):
            os.kill(os.getpid(), int(number))
def wrapper(*args, **more):
    if when == "before":
        signalled()
    try:
        return real(*args, **more)
    finally:
        if when == "after":
            signalled()
setattr(owner, name, wrapper)
sys.argv[1:] = arguments
from shoal.cli import main
main()
"""

POINTS = [
    "tempfile:mkdtemp",
    "subprocess:Popen",
    "shoal.cli.demos.plumbing:is_ready",
    "shoal.cli.process.processes:ProcessGroup.kill",
    "shoal.cli.process.signals:decided",
]
MORE_POINTS = [
    "shoal.cli.process.program:Program.main",
    "shoal.cli.process.program:flags_first",
    "shoal.learn.data.partition:divided",
    "shoal.cli.process.processes:ProcessGroup.__init__",
    "subprocess:Popen._execute_child",
    "shoal.cli.connection:connect",
    "shoal.cli.commands.follow:follow",
    "shoal.cli.demos.demo:answer",
    "subprocess:Popen.wait",
    "shutil:rmtree",
    "shoal.cli.process.signals:done",
]
"""From the first line to the last: `MODULE:NAME` of what is interrupted just before and just after it is called."""


@pytest.fixture
def folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a demo makes its folder."""
    (place / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(place / "tmp"))
    return place / "tmp"


def left_by(pid: int) -> list[int]:
    """Processes that a demo has started and that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes().split(b"\0")
        except OSError:  # ended meanwhile, or another program's
            continue
        if f"{PARENT}={pid}".encode() in environment:
            found.append(int(path.parent.name))
    return found


def check(running: subprocess.Popen[str], folder: Path, code: int) -> None:
    """It ends with that code and leaves nothing."""
    _, said = running.communicate(timeout=LEFT_S)
    assert running.returncode == code, said
    assert "Traceback" not in said
    assert list(folder.glob("shoal-demo-*")) == []
    assert left_by(running.pid) == []


def demo_interrupted(point: str, when: str, number: int, times: int) -> subprocess.Popen[str]:
    """A short demo that gets its signals at that point."""
    demo = ["demo", "--rounds", "1", "--clients", "1", "--split", "iid", "--port", "0"]
    command = [sys.executable, "-c", INTERRUPTING, point, when, str(int(number)), str(times), *demo]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, **pipes)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("when", "number", "times"), [("before", signal.SIGINT, 1), ("after", signal.SIGTERM, 2)])
@pytest.mark.parametrize("point", [*POINTS, *(pytest.param(point, marks=pytest.mark.nightly) for point in MORE_POINTS)])
def test_a_demo_leaves_nothing_wherever_it_is_interrupted(
    folder: Path, point: str, when: str, number: int, times: int
) -> None:
    decided = point.endswith(":decided") and when == "after"  # all has been said and done
    check(demo_interrupted(point, when, number, times), folder, 0 if decided else 130)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", nightly(range(3), but=[0]))
def test_a_demo_leaves_nothing_whenever_it_is_interrupted(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    running = process("demo", "--rounds", "100000", "--clients", "2", "--port", "0", "-v")
    assert running.stderr is not None
    assert running.stderr.readline()  # the first process was started: signals are heard from long before
    pause(draw.uniform(0, 1.5))
    for _ in range(draw.choice([1, 2, 5])):
        running.send_signal(draw.choice(signals.ENDING))
        pause(draw.uniform(0, 0.01))
    check(running, folder, 130)


IN_EXEC = """
import os
from shoal.cli.process import signals
try:
    signals.listen()
    exec("os.kill(os.getpid(), NUMBER)")
    signals.leave(0)
except KeyboardInterrupt:
    signals.leave(130)
"""


@pytest.mark.parametrize("number", signals.ENDING)
def test_the_exit_code_stands_where_python_remembers_ctrl_c(place: Path, number: int) -> None:
    """A plain `KeyboardInterrupt` out of an `exec` (each dataclass has one) ends `python -m` by SIGINT."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    (place / "ended.py").write_text(IN_EXEC.replace("NUMBER", str(int(number))))
    command = [sys.executable, "-m", "ended"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")


WHILE_EXITING = """
import atexit, os
from shoal.cli.process import signals
signals.listen()
signals.at_end(lambda: print("clean", flush=True))
atexit.register(lambda: os.kill(os.getpid(), NUMBER))
signals.leave(4)
"""


@pytest.mark.parametrize("number", signals.ENDING)
def test_the_exit_code_stands_while_python_ends(number: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WHILE_EXITING.replace("NUMBER", str(int(number)))]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (4, "clean\n", "")


def test_a_signal_whose_exception_python_ignores_is_raised_again() -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(signals.Interrupted), signals.listening():  # noqa: PT012 - the first statement must not raise
        Finalized()
        threading.Event().wait(60)

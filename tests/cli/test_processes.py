"""A demo's processes are watched, and none outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.process import child_of_parent
from shoal.cli.process.processes import DemoProcess, ProcessGroup, process_group
from shoal.cli.process.signals import ENDING
from shoal.core.errors import ShoalError
from tests.conventions.sources import ROOT
from tests.support.waiting import PATIENCE_S, pause, until

SLEEPS = "import time; print('asleep', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPS


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def child(processes: ProcessGroup, name: str, code: str) -> DemoProcess:
    """A process of the demo that runs this code instead of a command."""
    log = processes.folder / f"{name}.log"
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=written, stderr=subprocess.STDOUT, text=True
        )
    made = DemoProcess(name, process, log)
    processes.children.append(made)
    return made


def test_processes_and_folder_are_gone_afterwards() -> None:
    with process_group("shoal-test-") as processes:
        children = [child(processes, name, SLEEPS) for name in ("a", "b")]
        until("both to be asleep", lambda: all("asleep" in one.tail() for one in children))
        processes.check()
    assert [one.process.returncode for one in children] == [-signal.SIGKILL] * 2
    assert not processes.folder.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ShoalError, ZeroDivisionError])
def test_they_are_gone_whatever_happens(error: type[BaseException]) -> None:
    children = []

    def fail() -> None:
        with process_group("shoal-test-") as processes:
            children.append(child(processes, "a", SLEEPS))
            raise error("x")

    with pytest.raises(error):
        fail()
    (one,) = children
    assert one.process.returncode is not None
    assert not one.log.parent.exists()


def test_ctrl_c_while_it_cleans_up_waits_until_it_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ProcessGroup.kill

    def interrupted(self: ProcessGroup) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        real(self)

    monkeypatch.setattr(ProcessGroup, "kill", interrupted)
    children = []

    def be_told() -> None:
        with process_group("shoal-test-") as processes:
            children.append(child(processes, "a", STUBBORN))
            until("the first to be asleep", lambda: "asleep" in children[0].tail())

    with pytest.raises(KeyboardInterrupt):
        be_told()
    assert children[0].process.returncode == -signal.SIGKILL
    assert not children[0].log.parent.exists()


def test_a_crash_is_told_with_the_end_of_the_log() -> None:
    with process_group("shoal-test-") as processes:
        one = child(processes, "node-1", "for i in range(100): print('line', i)\nraise SystemExit(7)")
        until("it to end", lambda: one.process.poll() is not None)
        with pytest.raises(ShoalError, match="node-1 has ended with exit code 7") as caught:
            processes.check()
    assert caught.value.message.endswith("line 99")
    assert "line 80" not in caught.value.message


def test_a_good_end_is_awaited_and_another_told() -> None:
    with process_group("shoal-test-") as processes:
        quick = child(processes, "a", "pass")
        slow = child(processes, "b", SLEEPS)
        until("one to end and the other to sleep", lambda: quick.process.poll() is not None and "asleep" in slow.tail())
        assert not processes.all_ended()
        slow.process.kill()
        slow.process.wait()
        with pytest.raises(ShoalError, match="b has ended with exit code"):
            processes.all_ended()
    with process_group("shoal-test-") as processes:
        one = child(processes, "a", "pass")
        until("it to end", lambda: one.process.poll() is not None)
        assert processes.all_ended()


@pytest.mark.parametrize("number", ENDING)
def test_it_ends_as_at_ctrl_c(number: int) -> None:
    before = signal.getsignal(number)
    children = []

    def be_told() -> None:
        with process_group("shoal-test-") as processes:
            children.append(child(processes, "a", SLEEPS))
            os.kill(os.getpid(), number)
            pause(PATIENCE_S)  # the signal ends it

    with pytest.raises(KeyboardInterrupt):
        be_told()
    assert children[0].process.returncode is not None
    assert signal.getsignal(number) is before


def test_what_is_started_has_no_settings_of_a_person(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setenv("SHOAL_CLIENT__URL", "http://elsewhere:1")
    (place / "shoal.toml").write_text("[client]\nurl = 'http://elsewhere:2'\n")
    with process_group("shoal-test-") as processes:
        one = processes.start("config", ["config", "show", "--json"])
        one.process.wait(60)
        said = one.tail()
    assert '"status": "ok"' in said
    assert "elsewhere" not in said


def test_a_process_ends_with_the_one_that_started_it(place: Path) -> None:
    """The middle process is killed before its child could even look around."""
    tied = "import sys; from shoal.cli.process import child_of_parent; child_of_parent.watch(int(sys.argv[1]))"
    middle = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", middle, tied]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    started.stdout.close()
    assert is_alive(pid)
    started.kill()
    started.wait()
    until("it to end", lambda: not is_alive(pid))


def test_a_tethered_command_is_the_command(place: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), child_of_parent.IMPORTS: "json no.such.module"}
    command = [sys.executable, "-m", "shoal.cli.process.child_of_parent", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("shoal ")

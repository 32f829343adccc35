"""A training process that a command asks for, with its other end in a thread and a learner's process that is played."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
from structlog.testing import capture_logs

from shoal.core.errors import Cancelled, LearnerFailed, Refused
from shoal.core.protocol.message import Task
from shoal.runtime.training import command_process, folder_channel
from shoal.runtime.training.cards import LearnerDevices, process_device
from shoal.runtime.training.child_process import ProcessEnded
from shoal.runtime.training.command_process import TrainerCommand
from shoal.runtime.training.relay import Relay
from shoal.runtime.training.remote import RemoteTaskRun, TaskInputs
from shoal.runtime.training.training_process import TrainingProcess, TrainingSetup, start_by_command
from tests.support.waiting import until

READY = {"ready": True, "compute": LearnerDevices((process_device("cpu"),)).values(), "model_form": {}}


class PlayedChild:
    """A learner's process that answers each request with the request itself."""

    def __init__(self, first: Mapping[str, Any], environment: Mapping[str, str], log: Any, about: object) -> None:
        self.first, self.log = first, log
        self.replies: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.replies.put(READY)
        self.ended, self.killed = "", False

    def send(self, message: Mapping[str, Any]) -> None:
        self.log.warning("asked", number=message["n"])
        self.replies.put(dict(message))

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        if self.ended:
            raise ProcessEnded(self.ended, hint="its last words: none")
        try:
            return self.replies.get(timeout=timeout_s)
        except Empty:
            return None

    def kill(self) -> None:
        self.killed = True


class Scheduler:
    """A batch scheduler whose command only queues: the test starts the jobs."""

    def __init__(self, folder: Path, start: str = "echo 42", idle_s: float = 0.0) -> None:
        self.folder = folder
        command = TrainerCommand(start, f"echo {{output}} {{name}} >> {folder}/cancelled", 30.0)
        setup = TrainingSetup("x:y", folder / "shared", base=str(folder / "base"))
        self.training = TrainingProcess(setup, partial(start_by_command, command), idle_s)
        self.children: list[PlayedChild] = []
        self.ends: list[object] = []
        self.threads: list[threading.Thread] = []

    def starts(self) -> list[Path]:
        """Return the folders for which the command was run."""
        return [path.parent for path in (self.folder / "shared").glob("start-*/command.out")]

    def run_job(self, folder: Path) -> None:
        """Start a training process that was asked for."""
        relay = Relay(folder, self.start_child)  # type: ignore[arg-type]

        def run() -> None:
            try:
                self.ends.append(relay.run())
            except ProcessEnded as error:
                self.ends.append(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def start_child(self, *given: Any) -> PlayedChild:
        self.children.append(PlayedChild(*given))
        return self.children[-1]

    def run_queued(self) -> None:
        """Start the one that is asked for, once it is."""
        until("the request", self.starts)
        self.run_job(self.starts()[0])


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Scheduler]]:
    monkeypatch.setattr(folder_channel, "POLL_S", 0.005)
    (tmp_path / "base").write_bytes(b"frozen")
    made: list[Scheduler] = []

    def make(*given: Any, **more: Any) -> Scheduler:
        made.append(Scheduler(tmp_path, *given, **more))
        return made[-1]

    yield make
    for one in made:
        one.training.close()
        for thread in one.threads:
            thread.join()


def test_a_job_that_waits_in_the_queue_is_asked_for_once(
    scheduler: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A withdrawn task does not lose the place in the queue."""
    monkeypatch.setattr(command_process, "WAITING_LOG_S", 0.0)
    site = scheduler()
    looks: list[float] = []

    def look(fraction: float) -> None:
        looks.append(fraction)
        if len(looks) == 2:
            raise Cancelled("the task was withdrawn")

    with capture_logs() as logs:
        with pytest.raises(Cancelled):
            site.training.ask({"do": "x"}, look)
        (folder,) = site.starts()
        site.run_queued()
        assert site.training.ask({"slots": str(site.folder / "shared" / "a"), "memory": ""})["n"] == 1
    waiting = [line for line in logs if line["event"] == "waiting for the training process to start"]
    assert waiting[0]["output"] == "42"
    assert {"log_level": "warning", "event": "asked", "number": 1} in logs
    (child,) = site.children
    assert child.first["folder"] == str(site.folder / "shared")
    assert Path(child.first["base"]).read_bytes() == b"frozen"
    assert Path(child.first["base"]).parent == folder, "a file that another machine may not have is copied"
    assert (site.training.compute.device, site.training.starts, site.starts()) == ("cpu", 1, [folder])


def test_paths_are_those_of_the_other_machine(scheduler: Callable[..., Scheduler], tmp_path: Path) -> None:
    site = scheduler()
    (tmp_path / "mounted").symlink_to(tmp_path / "shared")
    thread = threading.Thread(
        target=lambda: site.run_job(tmp_path / "mounted" / until("the request", site.starts)[0].name)
    )
    thread.start()
    reply = site.training.ask({"slots": str(tmp_path / "shared" / "tmp" / "a"), "memory": ""})
    thread.join()
    assert reply == {"n": 1, "slots": str(tmp_path / "mounted" / "tmp" / "a"), "memory": ""}
    assert site.children[0].first["folder"] == str(tmp_path / "mounted")


def test_a_job_that_starts_late_is_not_wanted(scheduler: Callable[..., Scheduler]) -> None:
    site = scheduler()
    with pytest.raises(Cancelled):
        site.training.open(lambda fraction: (_ for _ in ()).throw(Cancelled("not now")))
    (late,) = site.starts()
    site.training.use(site.training.setup)
    assert (site.folder / "cancelled").read_text() == f"42 {late.name}\n"
    with pytest.raises(Refused, match="no training process is wanted"):
        Relay(late)
    thread = threading.Thread(target=site.run_queued)
    thread.start()
    site.training.open()
    thread.join()
    (present,) = site.starts()
    assert present != late
    with pytest.raises(Refused, match="another training process works with"):
        Relay(present)


def test_an_end_is_told_at_once_and_another_one_is_asked_for(scheduler: Callable[..., Scheduler]) -> None:
    site = scheduler()
    threading.Thread(target=site.run_queued).start()
    site.training.open()
    (first,) = site.starts()
    site.children[0].ended = "the training process has ended by signal 9 (SIGKILL)"
    running: Any = site.training._running
    until("its end", lambda: site.ends and not running.is_running)
    assert isinstance(site.ends[0], ProcessEnded)

    def run_next() -> None:
        until("another one", lambda: site.starts() not in ([], [first]))
        site.run_queued()

    threading.Thread(target=run_next).start()
    assert site.training.ask({"do": "x"})["n"] == 1, "it ended between two requests, so none was lost"
    assert site.training.starts == 2
    running = site.training._running
    site.children[1].ended = "again"
    until("its end", lambda: len(site.ends) == 2)
    with pytest.raises(ProcessEnded, match="again"):
        running.receive(60.0)


def test_an_idle_process_ends_but_not_between_two_pieces_of_a_task(scheduler: Callable[..., Scheduler]) -> None:
    class Task:
        """A task in hand."""

    site = scheduler(idle_s=0.05)
    task = Task()
    site.training.tasks.add(task)
    expired, end = [], site.training._idle._end
    site.training._idle._end = lambda: expired.append(end()) or expired[-1]  # type: ignore[func-returns-value]
    threading.Thread(target=site.run_queued).start()
    with capture_logs() as logs:
        site.training.open()
        until("two expiries", lambda: len(expired) >= 2)
        assert not site.children[0].killed
        del task
        until("the end", lambda: site.ends)
    assert expired[-2:] == [False, True]
    assert site.ends == ["its folder is gone"]
    assert site.children[0].killed
    assert any("ends until the next one" in line["event"] for line in logs)


def test_a_task_that_is_done_or_has_failed_is_not_in_hand() -> None:
    """An object that a traceback keeps would keep the machine of an idle process."""
    done: dict[str, Any] = {"local": {"weight": 1.0, "blob": None, "metrics": {}, "memory": None}}
    answers: Any = iter([{"begun": True}, {"status": None}, done, LearnerFailed("no")])

    def ask(what: object, progress: object) -> dict[str, Any]:
        answer: Any = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return {"check": 0, "base": None, **answer}

    blobs: Any = SimpleNamespace(keep_only=lambda kept: None)
    training: Any = SimpleNamespace(
        tasks=WeakSet(), dropped=deque(), about={}, starts=1, blobs=blobs, open=lambda progress: None, ask=ask
    )
    task = Task((1, 1), "a", "train", 0, 0)
    run = RemoteTaskRun(training, {}, TaskInputs(task, {}, {}, {}, None, blobs))
    in_hand = []
    for _ in range(2):
        run.run_piece(task)
        in_hand.append(list(training.tasks))
    assert in_hand == [[run], []]
    with pytest.raises(LearnerFailed):
        run.run_piece(task)
    assert not training.tasks


def test_a_command_that_fails_is_an_error_with_its_last_words(scheduler: Callable[..., Scheduler]) -> None:
    site = scheduler("echo sbatch: error: no such partition >&2; exit 3")
    with pytest.raises(ProcessEnded, match="the command for the training process has ended with exit code 3") as error:
        site.training.open()
    assert error.value.hint == "its last words: sbatch: error: no such partition"
    assert (site.starts(), (site.folder / "cancelled").exists()) == ([], False)


def test_a_command_that_goes_on_is_stopped(scheduler: Callable[..., Scheduler]) -> None:
    site = scheduler("trap 'exit 1' TERM; while true; do sleep 0.05; done")
    threading.Thread(target=site.run_queued).start()
    site.training.open()
    running: Any = site.training._running
    site.training.close()
    assert running._process.poll() is not None
    until("the end of the training process", lambda: site.ends)

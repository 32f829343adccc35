"""The training process, `python -m shoal.runtime.training.child`. `ipc` has its messages."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NoReturn, Protocol

from shoal.core.algorithm.algorithm import Algorithm, LocalResult
from shoal.core.algorithm.capability import check_learner, declared_lacks
from shoal.core.algorithm.filter import Filter
from shoal.core.algorithm.learner import Learner, check_stages, fresh_weights
from shoal.core.client.task_runner import TaskRunner
from shoal.core.errors import Cancelled, LearnerFailed, ShoalError
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import Task
from shoal.jobs.spec import parse_job
from shoal.learn.compute_threads import compute_threads, set_threads
from shoal.learn.example_count import count_examples
from shoal.learn.model_form import describe_layout, layout_of
from shoal.learn.user_errors import user_code
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import FileSource
from shoal.runtime.observability import logs
from shoal.runtime.training.cards import LearnerDevices, process_device
from shoal.runtime.training.ipc import error_fields, ref_fields
from shoal.runtime.training.site.group import RankGroup, is_started_here
from shoal.runtime.training.site.requests import NoBlobs, SilentWriter, SiteRequests, SiteWriter, Writer
from shoal.wire import codec
from shoal.wire.payload import measure, open_payload

NICE = 5
TICK_S = 0.2
"""Shortest time in seconds between two progress messages."""


class Requests(Protocol):
    """The requests to answer."""

    def get(self) -> dict[str, Any]: ...


class MessageWriter:
    """Writer of this process's messages. Thread-safe."""

    def __init__(self, out: IO[str]) -> None:
        self._out, self._lock = out, threading.Lock()
        self._reporting = 0.0
        self.asked, self.cancelled = 0, -1
        """The present request, and the last one that was cancelled."""

    def send(self, reply: Mapping[str, Any]) -> None:
        """Write one line."""
        with self._lock:
            self._out.write(json.dumps(reply) + "\n")
            self._out.flush()

    def progress(self, fraction: float) -> None:
        """Send progress; the learner's `Progress`."""
        if self.cancelled >= self.asked:
            raise Cancelled("the task was withdrawn")
        now = time.monotonic()
        if now - self._reporting >= TICK_S:
            self._reporting = now
            self.send({"progress": min(max(float(fraction), 0.0), 1.0)})


class TrainingChild:
    """The learner, and the tasks that are in hand. `group`: that of all ranks, which do the same; None: it is alone."""

    def __init__(self, given: Mapping[str, Any], writer: Writer, group: RankGroup | None = None) -> None:
        from shoal.learn.loading import load_learner, replace_base

        self._progress, self._group = writer.progress, group
        is_answering = group is None or group.site.rank == 0
        self._made: FileBlobs | NoBlobs = FileBlobs(Path(given["folder"])) if is_answering else NoBlobs()
        self._learner: Learner = load_learner(
            given["learner"], given["options"], device=given["device"], precision=given["precision"]
        )
        if group is None:
            self._compute = LearnerDevices((process_device(getattr(self._learner, "device", "")),))
        else:
            self._compute = group.attach(self._learner)
        if given["base"]:
            replace_base(self._learner, _opened(given["base"]))
        self._layout = layout_of(self._learner)
        set_threads(compute_threads(given["threads"], self._layout))
        self._plans: dict[str, tuple[Algorithm, tuple[Filter, ...]]] = {}
        self._tasks: dict[int, TaskRunner] = {}

    def describe(self) -> dict[str, Any]:
        """Return the description of the loaded learner, and for other ranks the number of its examples."""
        examples = {} if self._group is None else {"examples": getattr(self._learner, "examples", None)}
        return {
            **examples,
            "ready": True,
            "compute": self._compute.values(),
            "lacks": declared_lacks(self._learner),
            "model_form": describe_layout(self._layout),
        }

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Do what is asked. Raises `ShoalError`."""
        match asked["do"]:
            case "init":
                return self._init(int(asked["seed"]))
            case "count_examples":
                return {"examples": count_examples(self._learner, int(asked["seed"]))}
            case "check_job":
                check_learner(self._plan(asked["job"])[0], self._learner)
                return {"fits": True}
            case "start_task":
                self._begin(asked)
                return {"begun": True}
            case "run_step":
                return self._piece(int(asked["task_number"]), codec.from_json(asked["task"]))
        raise AssertionError(asked["do"])

    def drop(self, task_numbers: list[int]) -> None:
        """Discard these tasks."""
        for number in task_numbers:
            self._tasks.pop(number, None)

    def _init(self, seed: int) -> dict[str, Any]:
        """Return the initial model and the number of examples."""
        with user_code("the learner's init"):
            model = fresh_weights(self._learner, seed)
        return {"model": ref_fields(self._made.put({"model": model})), "examples": count_examples(self._learner, seed)}

    def _begin(self, asked: Mapping[str, Any]) -> None:
        algorithm, filters = self._plan(asked["job"])
        slots, base, memory = (_opened(asked[name]) for name in ("slots", "base", "memory"))
        work = TaskRunner(algorithm, self._learner, slots, base, memory, filters, self._progress)
        if self._group is not None:
            work.learner_done = self._group.pass_collectives
        self._tasks[asked["task_number"]] = work

    def _plan(self, job: dict[str, Any]) -> tuple[Algorithm, tuple[Filter, ...]]:
        key = json.dumps(job, sort_keys=True)
        if key not in self._plans:
            spec = parse_job(job)
            check_stages(self._learner, len(spec.stages))
            self._plans = {key: (spec.build_algorithm(), tuple(spec.build_filters()))}
        return self._plans[key]

    def _piece(self, hand: int, task: Task) -> dict[str, Any]:
        work = self._tasks[hand]
        first = not work.started
        held = work.reference
        with user_code(f"the learner's {task.kind}"):
            made = work.run_piece(task)
        base = self._made.put(work.reference) if first and work.reference is not held else None
        reply: dict[str, Any] = {"check": work.check, "base": ref_fields(base)}
        if not isinstance(made, LocalResult):
            return {**reply, "status": codec.to_json(made) if made is not None else None}
        measure(made.slots)
        return {
            **reply,
            "local": {
                "weight": float(made.weight),
                "blob": ref_fields(self._made.put(made.slots)) if made.slots else None,
                "metrics": {str(name): float(value) for name, value in made.metrics.items()},
                "memory": ref_fields(self._made.put(made.memory)) if made.memory is not None else None,
            },
        }


def _opened(path: str) -> Slots:
    return open_payload(FileSource(Path(path))) if path else {}


def serve(lines: Requests, writer: Writer, group: RankGroup | None = None) -> NoReturn:
    """Answer one line after the other."""
    child: TrainingChild | None = None
    while True:
        asked = lines.get()
        if child is not None and "drop" in asked:
            child.drop(asked["drop"])
            continue
        try:
            if child is None:
                child = TrainingChild(asked, writer, group)
                reply = child.describe()
            else:
                writer.asked = int(asked["n"])
                reply = child.answer(asked)
        except SystemExit as error:
            failed = LearnerFailed(f"the learner called sys.exit({error.code!r})")
            failed.__cause__ = error
            reply = {"error": error_fields(failed, _whole(failed))}
        except Exception as error:  # noqa: BLE001 - the user's code: told, and the process lives on
            of_interest = not isinstance(error, ShoalError) or isinstance(error, LearnerFailed) or error.__cause__
            reply = {"error": error_fields(error, _whole(error) if of_interest else "")}
        writer.send(reply)


def _whole(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def serve_ranks(group: RankGroup, lines: SimpleQueue[dict[str, Any]] | None, writer: Writer) -> NoReturn:
    """Answer one line after the other with all ranks of a site. `lines`: those of the node, at rank 0."""
    serve(SiteRequests(group, lines), SiteWriter(writer, group), group)


def follow() -> NoReturn:
    """Do what rank 0 is asked, as another rank, and end with it."""
    logs.configure("training", level="warning", form="json")  # rank 0 logs the rest
    serve_ranks(RankGroup.join(), None, SilentWriter())


def main() -> None:
    """Run the training process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the node, which says when this one is to end
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError, AttributeError):  # some systems have no such thing
        os.nice(NICE)
    faulthandler.enable()
    mine, out = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    if is_started_here():
        threading.Thread(target=_end_after, args=(mine,), daemon=True).start()  # rank 0 has the other end
        follow()
    writer, lines = MessageWriter(out), SimpleQueue[dict[str, Any]]()
    first = json.loads(mine.readline() or "null")
    if first is None:
        return
    logs.configure("training", level=first["level"], form="json")
    lines.put(first)

    def listen() -> None:
        for line in mine:
            asked = json.loads(line)
            if "cancel" in asked:
                writer.cancelled = asked["cancel"]
            else:
                lines.put(asked)
        _end()

    threading.Thread(target=listen, daemon=True).start()
    processes = int(first["processes"])
    if processes == 1:
        serve(lines, writer)
    else:
        group = RankGroup.start(processes) if processes else RankGroup.join()
        serve_ranks(group, lines, writer)


def _end_after(pipe: IO[str]) -> None:
    pipe.read()
    _end()


def _end() -> None:
    """Exit at once with all child processes: the node's process is gone."""
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()

"""Transcripts: a machine's inputs and, below each, what it answered. A person can read them, and a program check them.

# what this is about
> hub versions=1 quorum=2        the machine and its settings: first line of a file
> 0 restart                      a time, an event, its arguments
state: coordinator started …     what followed: one line for each effect

python -m tests.core.transcripts             compare all of them, show what differs
python -m tests.core.transcripts --rewrite   put what happens now into the files, to be read with `git diff`
"""

import difflib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.client.worker import Worker
from shoal.core.errors import Refused
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Tree, norm
from shoal.core.protocol.machine import (
    Effect,
    Event,
    NodeLost,
    ReportRejected,
    Restarted,
    TaskDone,
    TaskProgress,
    TaskResult,
    Timer,
)
from shoal.core.protocol.message import (
    Ack,
    Amendment,
    BlobRef,
    Join,
    Leave,
    NoTask,
    Pause,
    Poll,
    Report,
    Resume,
    Stop,
    Task,
    TaskFailed,
    TaskId,
    TaskStatus,
)
from shoal.core.server.hub import Hub
from shoal.schedules.divergence import Divergence
from shoal.schedules.rounds import Rounds
from shoal.sim.checks.trace import shown
from shoal.sim.network.blobs import MemoryBlobs

FOLDER = Path(__file__).parent / "transcripts"
Fields = dict[str, str]


def number(text: str) -> TaskId:
    term, _, n = text.partition(".")
    return int(term), int(n)


class HubScript:
    """A hub whose model is one number, in float64."""

    def __init__(self, **settings: str) -> None:
        take: Callable[[str, str], str] = settings.pop
        self._blobs = MemoryBlobs()
        start = self._model(take("start")) if "start" in settings else None  # type: ignore[call-arg]
        plan = JobPlan(
            int(settings.pop("versions", "2")),
            seed=7,
            aggregation_precision="fixed" if settings.pop("sums", "") == "fixed" else "float64",
            initial_model=start,
            init_timeout_s=float(settings.pop("patience_s", "60")),
        )
        kinds: dict[str, Callable[[str], Any]] = {"fraction": float, "deadline_s": float, "delta": float}
        kinds |= {"balancing": str, "in_step": bool}
        schedule_of = Divergence if settings.pop("schedule", "") == "divergence" else Rounds
        schedule = schedule_of(**{name: kinds.get(name, int)(value) for name, value in settings.items()})
        self._parts = plan, Algorithm(), schedule, self._blobs
        self.hub = Hub(*self._parts)
        self._saved = ""

    def _model(self, value: str) -> BlobRef:
        return self._blobs.put({"model": Tree.of({"w": np.array([float(value)])})})

    def say(self, what: str, now: float, words: list[str], fields: Fields) -> Iterator[str]:
        if what == "standing":
            yield shown(self.hub.poll_reply(words[0]))
        elif what == "verdict":
            yield self._verdict(self._report(words, fields))
        elif what == "save":
            self._saved = json.dumps(self.hub.snapshot())
        elif what == "restore":
            self.hub = Hub(*self._parts, json.loads(self._saved))
        elif what == "model":
            yield f"w={self.hub.store.slots['model']['w'][0]:g}"  # type: ignore[index, call-overload]
        else:
            yield from told(self.hub.on(self._event(what, words, fields), now))

    def _event(self, what: str, words: list[str], fields: Fields) -> Event:
        nodes: dict[str, Callable[[str], Event]] = {"join": Join, "poll": Poll, "leave": Leave, "lost": NodeLost}
        plain: dict[str, Event] = {
            "restart": Restarted(),
            "timer": Timer(),
            "pause": Pause(),
            "resume": Resume(),
            "stop": Stop("enough", "round" if "round" in words else "now"),
        }
        if what in nodes:
            return nodes[what](words[0])
        if what == "status":
            return TaskStatus(words[0], number(words[1]), int(fields["check"]))
        if what == "fail":
            return TaskFailed(words[0], number(words[1]), " ".join(words[2:]))
        return self._report(words, fields) if what == "report" else plain[what]

    def _report(self, words: list[str], fields: Fields) -> Report:
        task, weight = number(words[1]), float(fields.pop("weight", "1"))
        body, size = None, 0.0
        if "w" in fields:
            body = self._model(fields.pop("w"))
            size = norm(self._blobs.get(body)["model"])  # type: ignore[arg-type]
        metrics = {name: float(value) for name, value in fields.items()}
        return Report(words[0], task, 0, weight, body, metrics, size)

    def _verdict(self, report: Report) -> str:
        try:
            return shown(self.hub.reports.check(report))
        except Refused as refusal:
            return f"{refusal.code}: {refusal.message} ({refusal.hint})"


WITH_TASK = ("task", "amendment", "progress", "idle", "done", "error", "ack", "reject")


class WorkerScript:
    """A worker."""

    def __init__(self, **settings: str) -> None:
        self.worker = Worker("a", heartbeat_s=float(settings.get("heartbeat_s", "5")))

    def say(self, what: str, now: float, words: list[str], fields: Fields) -> Iterator[str]:
        worker = self.worker
        if what == "start":
            yield from told(worker.start(now))
        elif what == "restart":
            self.worker = Worker("a", heartbeat_s=worker.heartbeat_s, memory=worker.memory)
            if "spooled" in words and isinstance(worker.unacknowledged, Report):
                self.worker.restore_answer(worker.unacknowledged, worker.pending)
            yield from told(self.worker.start(now))
        elif what == "holds":
            memory, said = worker.memory, worker.unacknowledged
            yield f"task={shown(worker.task)} said={shown(said)} memory={shown(memory)} {worker.stopped or 'running'}"
        else:
            yield from told(worker.on(self._event(what, words, fields), now))

    def _event(self, what: str, words: list[str], fields: Fields) -> Event:
        task = number(words[0]) if words and what in WITH_TASK else (0, 0)
        rest = " ".join(words[1:])
        memory = BlobRef(fields["memory"], 1) if "memory" in fields else None
        events: dict[str, Event] = {
            "task": Task(task, "a", "train", int(fields.get("version", "0")), 7, None, **amended(fields)),
            "amendment": Amendment(task, **{"revision": 0, **amended(fields)}),
            "progress": TaskProgress(TaskStatus("a", task, int(fields.get("check", "0")))),
            "idle": NoTask(task),
            "done": TaskDone(task, TaskResult(10.0, BlobRef(f"up-{shown(task)}", 8), {}, memory)),
            "error": TaskDone(task, None, rest),
            "ack": Ack(task, "counted" in words, "" if "counted" in words else rest),
            "reject": ReportRejected(task, rest),
            "timer": Timer(),
            "stop": Stop("the job is done"),
            "leave": Leave("a"),
        }
        return events[what]


def amended(fields: Fields) -> dict[str, Any]:
    """Return the changes of an amendment to a task."""
    plain: dict[str, Any] = {name: int(fields[name]) for name in ("revision", "checks_allowed") if name in fields}
    return plain | ({"recall": True} if "recall" in fields else {})


def told(effects: Sequence[Effect]) -> Iterator[str]:
    yield from ("-" for _ in range(not effects))
    yield from map(shown, effects)


def played(text: str) -> str:
    """The transcript, with the answers that the machine gives now."""
    script: Any = None
    lines = []
    for line in text.splitlines():
        if not line.startswith(">"):
            lines += [line] if line.startswith("#") or not line else []
            continue
        lines.append(line)
        words = line[1:].split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        words = [word for word in words if "=" not in word]
        if words[0] in ("hub", "worker"):
            script = (HubScript if words[0] == "hub" else WorkerScript)(**fields)
        else:
            lines += script.say(words[1], float(words[0]), words[2:], fields)
    return "\n".join(lines) + "\n"


def differences(path: Path) -> str:
    """Return the difference between a transcript and the run; empty if there is none."""
    before = path.read_text(encoding="utf-8")
    lines = difflib.unified_diff(before.splitlines(), played(before).splitlines(), path.name, "now", lineterm="")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    wrong = 0
    for path in sorted(FOLDER.glob("*.txt")):
        found = differences(path)
        if found:
            wrong += 1
            sys.stdout.write(f"{found}\n")
        if "--rewrite" in arguments:
            path.write_text(played(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if wrong and "--rewrite" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

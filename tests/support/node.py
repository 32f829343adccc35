"""A tiny node whose training is a pure function of (node, version), so that every model is known beforehand.

Displacements are small multiples of 2**-10 and weights small whole numbers: their float64 sums are exact in any order,
so that one formula of numpy predicts a model to the bit, in any order of reports.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from shoal.core.protocol.message import Ack, BlobRef, NoTask, Report, Stop, Task, TaskFailed, TaskId
from shoal.wire import codec
from tests.support.clients import client
from tests.support.waiting import PATIENCE_S, pause

Floats = npt.NDArray[np.float32]

PAUSE_S = 0.01
"""Between attempts: tests are in a hurry."""


def _noise(text: str, size: int) -> npt.NDArray[np.int64]:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).integers(-512, 513, size)


def initial(size: int) -> Floats:
    """The initial model, from whichever node."""
    return (_noise("initial", size) / 1024).astype(np.float32)


def displacement(node: str, version: int, size: int) -> Floats:
    """Return the update of a node's training for that version."""
    return (_noise(f"{node}/{version}", size) / 1024).astype(np.float32)


def weight(node: str) -> float:
    """A node's number of examples."""
    return float(1 + len(node) % 3 + node.encode()[-1] % 4)


def body(values: Floats) -> bytes:
    """A model as a file, written by the library that owns the format."""
    return bytes(save({"w": values}))


def advance(model: Floats, version: int, nodes: Sequence[str], sums: str = "float64") -> Floats:
    """The next model when these nodes reported on that version."""
    total = np.zeros(model.size)
    for node in nodes:
        total += displacement(node, version, model.size).astype(np.float64) * weight(node)
    factor = 1.0 / sum(weight(node) for node in nodes)
    if sums == "fixed":
        total, factor = np.rint(total * 2.0**40), factor * 2.0**-40
    return (model.astype(np.float64) + total * factor).astype(np.float32)


@dataclass
class History:
    """Answers to nodes, for a checker to compare with the coordinator's state."""

    acks: list[tuple[str, str, TaskId, int, bool]] = field(default_factory=list)
    """(job, node, task, version, counted) of each acknowledged report on a training task."""
    wrongs: list[str] = field(default_factory=list)
    enrolled: dict[str, str] = field(default_factory=dict)
    """Credentials by node."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledged(self, job: str, node: str, task: Task, ack: Ack) -> None:
        with self.lock:
            if task.kind == "train":
                self.acks.append((job, node, task.id, task.version, ack.counted))

    def wrong(self, text: str) -> None:
        with self.lock:
            self.wrongs.append(text)


class Node(threading.Thread):
    """One node, in a thread of its own. It goes on until all its jobs have ended; nothing else discourages it."""

    def __init__(
        self,
        where: Callable[[], str],
        name: str,
        token: str,
        sizes: dict[str, int],
        history: History | None = None,
        *,
        sums: dict[str, str] | None = None,
    ) -> None:
        super().__init__(name=f"node {name}", daemon=True)
        self.where, self.node, self.token, self.sizes = where, name, token, dict(sizes)
        self.history = history or History()
        self.key = hashlib.sha256(f"{name}{token}".encode()).hexdigest()
        self.client = client()
        self.client.headers["Shoal-Protocol"] = "1"
        self.last: dict[str, TaskId] = {}
        self.answered: set[tuple[str, TaskId]] = set()
        self.over: set[str] = set()
        self.quit = threading.Event()
        self.unsure = False
        """After a break it does not claim to hold what it has answered: what was forgotten would be asked for again."""
        self.beats = self.fails_once = self.breaks_uploads = False
        self.wait_s = "1"
        self.failure: BaseException | None = None
        self.about: dict[str, list[str]] = {}
        """Tags and hours that it tells."""

    # Requests

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """A request, again and again until the coordinator has answered it."""
        while True:
            found = self.once(method, path, **more)
            if found is not None and found.status_code < 500:
                return found
            if self.quit.wait(PAUSE_S):
                raise Gone

    def once(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """One attempt; None when no whole answer came."""
        try:
            return self.client.request(method, f"{self.where()}/api/v1{path}", **more)
        except (httpx.TransportError, httpx.DecodingError):
            self.unsure = True
            return None

    # Life

    def run(self) -> None:
        try:
            self.enter()
            while not self.over.issuperset(self.sizes) and not self.quit.is_set():
                self.step()
        except Gone:
            return
        except BaseException as error:  # shown by `finish`
            self.failure = error
        finally:
            self.client.close()

    def finish(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until it has ended by itself."""
        self.join(patience_s)
        late = self.is_alive()
        self.quit.set()
        self.join(patience_s)
        if self.failure is not None:
            raise self.failure
        assert not late, f"{self.node} has not ended; over: {self.over} of {set(self.sizes)}"

    def enter(self) -> None:
        """Enrol and say hello."""
        wanted = {"token": self.token, "name": self.node, "info": {"test": True}}
        found = self.ask("POST", "/enrol", json=wanted, headers={"Idempotency-Key": self.key})
        assert found.status_code == 201, found.text
        with self.history.lock:
            self.history.enrolled[self.node] = found.json()["credential"]
        self.client.headers["Authorization"] = f"Bearer {found.json()['credential']}"
        assert self.ask("POST", "/hello", json={"info": self.about} if self.about else {}).status_code == 200

    def step(self) -> None:
        """One poll, and what follows from it."""
        last = {job: task for job, task in self.last.items() if job not in self.over}
        if self.unsure:
            last, self.unsure = {job: task for job, task in last.items() if (job, task) not in self.answered}, False
        held = [("held", f"{job}:{term}.{n}") for job, (term, n) in last.items()]
        found = self.ask("GET", "/work", params=[("wait_s", self.wait_s), *held])
        if found.status_code == 204:
            return
        assert found.status_code == 200, found.text
        frame = codec.decode(found.content)
        match frame.message:
            case Stop():
                self.over.add(frame.job)
            case NoTask():
                self.last.pop(frame.job, None)
            case Task() as task:
                self.obey(frame.job, task, frame.payload)

    def obey(self, job: str, task: Task, payload: bytes) -> None:
        """Do a task and see its report acknowledged."""
        if (job, task.id) in self.answered:
            self.history.wrong(f"{self.node}: task {task.id} of {job} came again after its acknowledgement")
        self.last[job] = task.id
        if task.blob is not None:
            self.read(job, task.blob, payload)
        if self.fails_once and task.kind == "train":
            self.fails_once = False
            self.fail(job, task)
            return
        if self.beats:
            beat = {"job": job, "task": f"{task.id[0]}.{task.id[1]}", "progress": 0.5}
            assert self.ask("POST", "/heartbeat", json=beat).status_code == 204
        ack = self.report(job, task)
        self.history.acknowledged(job, self.node, task, ack)
        self.answered.add((job, task.id))

    def read(self, job: str, ref: BlobRef, payload: bytes) -> None:
        """Get what a task names, and see that it is that."""
        if not payload:
            found = self.ask("GET", f"/jobs/{job}/blobs/{ref.digest}")
            if found.status_code == 409:  # the task has been withdrawn meanwhile
                return
            assert found.status_code == 200, found.text
            payload = found.content
        assert hashlib.sha256(payload).hexdigest() == ref.digest, f"{self.node}: the model of {job} is not its digest"

    def result(self, job: str, task: Task) -> tuple[bytes, float, dict[str, float]]:
        """(body, weight, metrics) that answer a task."""
        size = self.sizes[job]
        if task.kind == "init":
            return body(initial(size)), 1.0, {}
        score = {"eval/accuracy": task.version / 1024, "eval/examples": 8.0}
        if task.kind == "evaluate":
            return b"", 0.0, {"train/loss": 0.25} if task.numbers.get("probe") else score
        return body(displacement(self.node, task.version, size)), weight(self.node), {**score, "train/loss": 0.5}

    def report(self, job: str, task: Task) -> Ack:
        """Send the result until it is acknowledged, the body before it where it is large."""
        data, share, metrics = self.result(job, task)
        ref = BlobRef(hashlib.sha256(data).hexdigest(), len(data)) if data else None
        frame = codec.Frame(job, Report(self.node, task.id, task.version, share, ref, metrics))
        large = len(data) > codec.INLINE_BYTES_MAX
        content = codec.encode(frame if large else codec.Frame(job, frame.message, data))
        here = False
        while True:
            if large and not here:
                here = self.upload(job, ref, data)
            found = self.ask("POST", f"/jobs/{job}/reports", content=content)
            if found.status_code == 409 and found.json()["code"] == "blob.missing":
                here = False
                pause(PAUSE_S)
                continue
            if found.status_code == 200:
                ack = codec.decode(found.content).message
                assert isinstance(ack, Ack)
                return ack
            self.history.wrong(f"{self.node}: report on {task} of {job} got {found.status_code} {found.text}")
            return Ack(task.id, False, "refused")

    def upload(self, job: str, ref: BlobRef | None, data: bytes) -> bool:
        """PUT a body, resuming what broke off; True when it is there, or is not wanted any more."""
        assert ref is not None
        path, start = f"/jobs/{job}/blobs/{ref.digest}", 0
        broken = self.breaks_uploads
        while True:
            if broken:
                self.break_off(path, data)
                broken = False
                found = None
            else:
                headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
                found = self.once("PUT", path, content=data[start:], headers=headers)
            if found is not None and found.status_code in (200, 201):
                return True
            if found is not None and found.status_code == 409 and found.json()["code"] in ("task.none", "job.ended"):
                return True  # the report's answer will say what became of it
            pause(PAUSE_S)
            look = self.ask("HEAD", path)
            if look.status_code == 200:
                return True
            start = int(look.headers.get("Upload-Offset", "0"))

    def break_off(self, path: str, data: bytes) -> None:
        """Send the first half of a body and hang up."""

        def half() -> Any:
            yield data[: len(data) // 2]
            pause(2 * PAUSE_S)
            raise OSError("hanging up")

        try:
            self.client.put(f"{self.where()}/api/v1{path}", content=half(), headers={"Content-Length": str(len(data))})
        except (OSError, httpx.HTTPError):
            return

    def fail(self, job: str, task: Task) -> None:
        """Say that a task cannot be done."""
        content = codec.encode(codec.Frame(job, TaskFailed(self.node, task.id, "no luck")))
        found = self.ask("POST", f"/jobs/{job}/failures", content=content)
        assert found.status_code == 200, found.text


class Gone(Exception):
    """The test has ended before the node."""

"""A coordinator for edge clients: real hubs that answer the client's protocol, with faults that are planted one by one.

`plant(FAULT, METHOD, PATTERN)` hits the next request that matches:

    lose-request     the connection is closed before anything happens
    lose-response    the request is carried out, then the connection is closed
    twice            the request is carried out twice, the second answer goes out
    cut              half of the answer's body goes out, then the connection is closed
    cut-request      half of the request's body is read and kept, then the connection is closed
    corrupt          one byte of the answer's body is another
    empty            an answer of 200 without the protocol's header
    pause            nothing new (204), and to stay away for `pause` seconds
    4xx, 5xx         that status, with `code`, and `retry_after` where it is given
    foreign-4xx      that status, as a proxy in between would give it
"""

from __future__ import annotations

import functools
import re
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.protocol.machine import ModelVersion, Restarted, Save, Send
from shoal.core.protocol.message import Ack, BlobRef, Join, Leave, NoTask, Poll, Report, Stop, Task, TaskFailed, TaskId
from shoal.core.scheduling.selection import parse_node_info
from shoal.core.server.hub import Hub
from shoal.jobs.spec import parse_job
from shoal.runtime.blob_files import FileBlobs
from shoal.wire import codec
from shoal.wire.payload import measure
from tests.support.fake_coordinator import BASE, PROTOCOL, Answer, FakeCoordinator, Problem, as_json, raw, response
from tests.support.http_servers import Asked, Said, answering
from tests.support.waiting import PATIENCE_S


@dataclass
class Fault:
    kind: str
    method: str
    pattern: str
    code: str = "test.fault"
    retry_after: str = ""
    pause: str = ""
    hit: threading.Event = field(default_factory=threading.Event)

    def hits(self, name: str) -> bool:
        """Return whether it is for a request, such as "GET /work"."""
        method, _, path = name.partition(" ")
        return self.method == method and re.search(self.pattern, path) is not None


class Coordinator(FakeCoordinator):
    """State and routes. `plan` is a job file's values, without its name."""

    def __init__(self, folder: Path, jobs: dict[str, dict[str, Any]], tokens: tuple[str, ...] = ("sht_one",)) -> None:
        super().__init__()
        self.blobs = FileBlobs(folder / "blobs")
        self.changed = threading.Condition(threading.RLock())
        self.specs = {name: parse_job({"name": name, **plan}) for name, plan in jobs.items()}
        self.hubs = {name: self._hub(name) for name in jobs}
        self.tokens = dict.fromkeys(tokens, "")
        self.enrolled: dict[str, tuple[str, str]] = {}  # idempotency key -> (token, credential)
        self.nodes: dict[str, str] = {}  # credential -> name
        self.faults: list[Fault] = []
        self.bases: dict[str, BlobRef] = {}
        """Base models that jobs offer."""
        self.requests: Counter[str] = Counter()
        self.bytes_in = 0
        self.counted: list[tuple[str, str, TaskId]] = []
        self.failed: list[str] = []
        self.metrics: list[dict[str, float]] = []
        self.refused: list[str] = []
        self.beats: list[tuple[str, float]] = []
        self.left: list[str] = []
        self.versions: dict[str, list[ModelVersion]] = {name: [] for name in jobs}
        self.lose: Callable[[Asked, Said], bool] = lambda asked, said: False
        self.answers = self._table()

    def _hub(self, name: str) -> Hub:
        spec = self.specs[name]
        hub = Hub(spec.plan(), spec.build_algorithm(), spec.build_schedule(), self.blobs)
        hub.on(Restarted(), 0.0)
        return hub

    def plant(self, kind: str, method: str, pattern: str, **more: str) -> Fault:
        fault = Fault(kind, method, pattern, **more)
        self.faults.append(fault)
        return fault

    def feed(self, job: str, event: Any) -> None:
        with self.changed:
            for effect in self.hubs[job].on(event, time.monotonic()):
                if isinstance(effect, Save) and isinstance(effect.what, ModelVersion):
                    self.versions[job].append(effect.what)
                if isinstance(effect, Send) and isinstance(effect.message, Ack) and effect.message.counted:
                    self.counted.append((job, effect.to, effect.message.task))
            self.changed.notify_all()

    def wait(self, condition: Any, patience_s: float = PATIENCE_S) -> None:
        """Until the condition holds. Raises `AssertionError` when it takes too long."""
        with self.changed:
            assert self.changed.wait_for(condition, patience_s), "it did not happen"

    def ended(self, job: str) -> bool:
        return self.hubs[job].progress.phase in ("done", "stopped")

    def answer(self, asked: Asked) -> Said | None:
        """Answer from the table, unless a planted fault says otherwise."""
        name = f"{asked.method} {asked.path.removeprefix(BASE)}"
        with self.changed:
            self.requests[re.sub(r"[0-9a-f]{64}", "DIGEST", name)] += 1
            self.changed.notify_all()
            fault = next((one for one in self.faults if one.hits(name)), None)
            self.faults = [one for one in self.faults if one is not fault]
        if fault is not None and fault.kind in ("lose-request", "cut-request"):
            self._break_off(asked, fault)
            return None
        self.bytes_in += len(asked.body)
        said = self._planted(asked, fault) if fault is not None else super().answer(asked)
        lost = said is None or self.lose(asked, said)
        if lost and fault is not None:
            fault.hit.set()
        return None if lost else said

    def _planted(self, asked: Asked, fault: Fault) -> Said | None:
        status = re.search(r"\d+$", fault.kind)
        if status is not None:
            said = response(Problem(int(status[0]), fault.code, "planted", "a hint"))
            said.headers |= {"Retry-After": fault.retry_after} if fault.retry_after else {}
        else:
            said = super().answer(asked) or Said()
        assert isinstance(said.body, bytes)
        body = said.body
        change: dict[str, Any] = {}
        if fault.kind == "twice":
            return replace(super().answer(asked) or Said(), sent=fault.hit)
        if fault.kind == "pause":
            change = {"status": 204, "body": b"", "headers": {**PROTOCOL, "Shoal-Retry-After": fault.pause}}
        elif fault.kind == "corrupt":
            change = {"body": body[:-1] + bytes([body[-1] ^ 1])}
        elif fault.kind == "empty":
            change = {"body": b"", "headers": {}}
        elif fault.kind == "cut":
            change = {"body": body[: len(body) // 2], "length": len(body)}
        elif fault.kind.startswith("foreign-"):
            change = {"headers": {key: value for key, value in said.headers.items() if key != "Shoal-Protocol"}}
        return None if fault.kind == "lose-response" else replace(said, sent=fault.hit, **change)

    def _break_off(self, asked: Asked, fault: Fault) -> None:
        if fault.kind == "cut-request":
            ref = BlobRef(asked.path.rpartition("/")[2], asked.length)
            with self.blobs.partials.incoming(self._node(asked), ref) as incoming:
                incoming.write(asked.handler.rfile.read(asked.length // 2))
        fault.hit.set()

    def _node(self, asked: Asked) -> str:
        return self.nodes.get(asked.headers.get("Authorization", "").removeprefix("Bearer "), "")

    def _known(self, route: Callable[[Asked, str], Answer]) -> Callable[[Asked], Answer]:
        """Return a route that answers known nodes alone, and is told the node's name."""

        def checked(asked: Asked) -> Answer:
            node = self._node(asked)
            return route(asked, node) if node else Problem(401, "auth.refused", "the credential is unknown or revoked")

        return checked

    # Routes

    def _table(self) -> dict[str, Answer | Callable[[Asked], Answer]]:
        table: dict[str, Callable[[Asked, str], Answer]] = {
            "POST /hello": self._hello,
            "GET /work": self._work,
            "POST /heartbeat": self._heartbeat,
            "POST /leave": self._leave,
        }
        for job in self.specs:
            table[f"GET /jobs/{job}"] = functools.partial(self._view, job=job)
            table[f"POST /jobs/{job}/reports"] = functools.partial(self._outcome, job=job)
            table[f"POST /jobs/{job}/failures"] = functools.partial(self._outcome, job=job)
            table[f"* /jobs/{job}/blobs/*"] = self._body
        table["* /jobs/*"] = lambda asked, node: Problem(404, "job.unknown", "no job of that name")
        return {"POST /enrol": self._enrol} | {key: self._known(route) for key, route in table.items()}

    def _enrol(self, asked: Asked) -> Answer:
        values, key = asked.json(), asked.headers.get("Idempotency-Key", "")
        with self.changed:
            if self.enrolled.get(key, ("",))[0] == values["token"]:
                credential = self.enrolled[key][1]
            elif self.tokens.get(values["token"]) == "":
                credential = f"shn_{len(self.nodes):032d}"
                self.tokens[values["token"]] = values["name"]
                self.nodes[credential] = values["name"]
                self.enrolled[key] = values["token"], credential
            else:
                return Problem(401, "token.invalid", "the token is unknown or used up")
        return as_json({"credential": credential, "name": values["name"], "protocol": 1}, 201)

    def _hello(self, asked: Asked, node: str) -> Answer:
        for job in self.hubs:
            self.feed(job, Join(node, node_info=parse_node_info(asked.json()["info"])))
        return {"name": node, "protocol": 1, "lease_s": 15.0, "heartbeat_s": 0.05, "wait_s_max": 5.0}

    def _work(self, asked: Asked, node: str) -> Answer:
        query = parse_qs(asked.query)
        wait_s = float(query["wait_s"][0])
        held = {}
        for text in query.get("held", []):
            job, _, task = text.rpartition(":")
            term, n, revision = (*map(int, task.split(".")), 0)[:3]
            held[job] = (term, n), revision
        until = time.monotonic() + wait_s
        with self.changed:
            while not has_hung_up(asked):
                for job, hub in self.hubs.items():
                    if not hub.is_poll_repeated(node):
                        self.feed(job, Poll(node))
                    answer = self._news(job, hub, node, held.get(job))
                    if answer is not None:
                        return answer
                if not self.changed.wait(until - time.monotonic()):
                    break
        return None

    def _heartbeat(self, asked: Asked, node: str) -> None:
        beat = asked.json()
        with self.changed:
            self.beats.append((beat["task"], beat["progress"]))
            self.changed.notify_all()

    def _leave(self, asked: Asked, node: str) -> None:
        with self.changed:
            self.left.append(node)
            for job in self.hubs:
                self.feed(job, Leave(node))

    def _news(self, job: str, hub: Hub, node: str, held: tuple[TaskId, int] | None) -> Answer | None:
        standing = hub.poll_reply(node)
        if isinstance(standing, Task) and (held is None or (standing.id, standing.revision) > held):
            payload = b""
            if standing.blob is not None and standing.blob.nbytes <= codec.INLINE_BYTES_MAX:
                payload = self.blobs.open(standing.blob)[:]
            return _frame(job, standing, payload)
        member = hub.roster.get(node)
        answered = member.last_ack.task if member is not None and member.last_ack is not None else None
        if isinstance(standing, NoTask) and held is not None and held[0] != answered:
            return _frame(job, standing)
        told = isinstance(standing, Stop) and (held is not None or standing.model_differs)
        return _frame(job, standing) if told else None

    def _view(self, asked: Asked, node: str, job: str) -> Answer:
        values = {"name": job, "state": self.hubs[job].progress.phase, "created_at": "2026-01-01T00:00:00Z"}
        base = self.bases.get(job)
        shown = {"digest": base.digest, "bytes": base.nbytes} if base is not None else None
        return {**values, "spec": self.specs[job].model_dump(), "base_model": shown}

    def _outcome(self, asked: Asked, node: str, job: str) -> Answer:
        frame = codec.decode(asked.body)
        message = frame.message
        if isinstance(message, TaskFailed):
            with self.changed:
                self.failed.append(message.error)
                self.feed(job, TaskFailed(node, message.task, message.error))
            return _frame(job, self._ack(job, node, message.task))
        assert isinstance(message, Report), message
        return self._report(job, Report(node, *_rest(message)), frame.payload)

    def _report(self, job: str, report: Report, payload: bytes) -> Answer:
        hub = self.hubs[job]
        with self.changed:
            try:
                answer = hub.reports.check(report)
                if answer is not None:
                    return _frame(job, answer)
                norm = self._admit(report, payload)
            except (InvalidPayload, Refused) as error:
                self.refused.append(error.code)
                return Problem(422 if isinstance(error, InvalidPayload) else 409, error.code, error.message)
            self.metrics.append(report.metrics)
            self.feed(job, Report(report.node, *_rest(report)[:-1], norm))
            return _frame(job, self._ack(job, report.node, report.task))

    def _admit(self, report: Report, payload: bytes) -> float:
        if report.blob is None:
            return 0.0
        if payload:
            with self.blobs.partials.incoming(report.node, report.blob) as incoming:
                incoming.write(payload)
                incoming.finish()
        if not self.blobs.has(report.blob.digest):
            raise Refused("upload it again", code="blob.missing")
        return measure(self.blobs.get(report.blob))

    def _ack(self, job: str, node: str, task: TaskId) -> Ack:
        member = self.hubs[job].roster.get(node)
        if member is not None and member.last_ack is not None and member.last_ack.task == task:
            return member.last_ack
        return Ack(task, False, "nothing of that kind stands")

    def _body(self, asked: Asked, node: str) -> Answer:
        digest = asked.path.rpartition("/")[2]
        size = self.blobs.size(digest)
        if asked.method == "GET":
            return Problem(404, "blob.unknown") if size is None else self._download(asked, BlobRef(digest, size))
        if asked.method == "HEAD":
            offset = self.blobs.partials.offset(node, digest)
            return raw(b"") if size is not None else raw(b"", {"Upload-Offset": str(offset)}, 404)
        return self._upload(asked, node, digest)

    def _download(self, asked: Asked, ref: BlobRef) -> Said:
        data = self.blobs.open(ref)[:]
        start = re.fullmatch(r"bytes=(\d+)-", asked.headers.get("Range", ""))
        if start is None:
            return raw(data)
        part = f"bytes {start[1]}-{ref.nbytes - 1}/{ref.nbytes}"
        return raw(data[int(start[1]) :], {"Content-Range": part}, 206)

    def _upload(self, asked: Asked, node: str, digest: str) -> Answer:
        part = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", asked.headers.get("Content-Range", ""))
        begin, total = (int(part[1]), int(part[2])) if part else (0, len(asked.body))
        try:
            with self.blobs.partials.incoming(node, BlobRef(digest, total), begin) as incoming:
                incoming.write(asked.body)
                incoming.finish()
        except (InvalidPayload, Refused) as error:
            self.refused.append(error.code)
            return Problem(416 if error.code == "blob.offset" else 422, error.code, error.message)
        return as_json({"digest": digest, "bytes": total}, 201)


def _rest(report: Report) -> tuple[Any, ...]:
    return report.task, report.version, report.weight, report.blob, report.metrics, report.norm


def _frame(job: str, message: Any, payload: bytes = b"") -> Said:
    return raw(codec.encode(codec.Frame(job, message, payload)), {"Content-Type": codec.MEDIA_TYPE})


def has_hung_up(asked: Asked) -> bool:
    """Return whether the client has hung up."""
    connection = asked.handler.connection
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)


@contextmanager
def serving(coordinator: Coordinator, port: int = 0) -> Iterator[str]:
    """Yield the coordinator's address while the block runs."""
    with answering(coordinator.answer, port=port) as url:
        yield url

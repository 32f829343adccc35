"""A coordinator for tests: the real hub behind a plain threaded server, with faults that are planted one by one.

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

import json
import re
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.protocol.machine import ModelVersion, Restarted, Save, Send
from shoal.core.protocol.message import Ack, BlobRef, Join, Leave, NoTask, Poll, Report, Stop, Task, TaskFailed, TaskId
from shoal.core.scheduling.selection import parse_node_info
from shoal.core.server.hub import Hub
from shoal.jobs.spec import parse_job
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import digest_of
from shoal.wire import codec
from shoal.wire.payload import measure

PREFIX = "/api/v1"
PATIENCE_S = 60.0
"""How long a test waits for what must happen; a loaded machine takes its time."""


@dataclass
class Fault:
    kind: str
    method: str
    pattern: str
    code: str = "test.fault"
    retry_after: str = ""
    pause: str = ""
    hit: threading.Event = field(default_factory=threading.Event)


@dataclass
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def problem(status: int, code: str, detail: str = "no", **headers: str) -> Answer:
    body = json.dumps({"status": status, "code": code, "detail": detail, "hint": "a hint"}).encode()
    return Answer(status, body, {"Content-Type": "application/problem+json", **headers})


class Coordinator:
    """State and routes. `plan` is a job file's values, without its name."""

    def __init__(self, folder: Path, jobs: dict[str, dict[str, Any]], tokens: tuple[str, ...] = ("sht_one",)) -> None:
        self.bodies = FileBlobs(folder / "bodies")
        self.changed = threading.Condition(threading.RLock())
        self.specs = {name: parse_job({"name": name, **plan}) for name, plan in jobs.items()}
        self.hubs = {name: self._hub(name) for name in jobs}
        self.tokens = dict.fromkeys(tokens, "")
        self.enrolled: dict[str, tuple[str, str]] = {}  # idempotency key -> (token, credential)
        self.nodes: dict[str, str] = {}  # credential -> name
        self.faults: list[Fault] = []
        self.requests: Counter[str] = Counter()
        self.bytes_in = 0
        self.counted: list[tuple[str, str, TaskId]] = []
        self.failed: list[str] = []
        self.metrics: list[dict[str, float]] = []
        self.refused: list[str] = []
        self.beats: list[tuple[str, float]] = []
        self.left: list[str] = []
        self.versions: dict[str, list[ModelVersion]] = {name: [] for name in jobs}
        self.lose: Callable[[Request, Answer], bool] = lambda request, answer: False

    def _hub(self, name: str) -> Hub:
        spec = self.specs[name]
        hub = Hub(spec.plan(), spec.build_algorithm(), spec.build_schedule(), self.bodies)
        hub.on(Restarted(), 0.0)
        return hub

    # Seen from tests

    def plant(self, kind: str, method: str, pattern: str, **more: str) -> Fault:
        fault = Fault(kind, method, pattern, **more)
        self.faults.append(fault)
        return fault

    def feed(self, job: str, event: Any) -> None:
        with self.changed:
            for effect in self.hubs[job].on(event, time.monotonic()):
                if isinstance(effect, Save) and isinstance(effect.what, ModelVersion):
                    self.versions[job].append(effect.what)
                if isinstance(effect, Send) and isinstance(effect.body, Ack) and effect.body.counted:
                    self.counted.append((job, effect.to, effect.body.task))
            self.changed.notify_all()

    def wait(self, condition: Any, patience_s: float = PATIENCE_S) -> None:
        """Until the condition holds. Raises `AssertionError` when it takes too long."""
        with self.changed:
            assert self.changed.wait_for(condition, patience_s), "it did not happen"

    def ended(self, job: str) -> bool:
        return self.hubs[job].progress.phase in ("done", "stopped")

    # Routes

    def handle(self, request: Request) -> Answer:
        method, path = request.method, request.path.removeprefix(PREFIX)
        if (method, path) == ("POST", "/enrol"):
            return self._enrol(request)
        node = self.nodes.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if node is None:
            return problem(401, "auth.refused", "the credential is unknown or revoked")
        if (method, path) == ("POST", "/hello"):
            return self._hello(request, node)
        if (method, path) == ("GET", "/work"):
            return self._work(request, node)
        if (method, path) == ("POST", "/heartbeat"):
            beat = json.loads(request.body)
            with self.changed:
                self.beats.append((beat["task"], beat["progress"]))
                self.changed.notify_all()
            return Answer(204)
        if (method, path) == ("POST", "/leave"):
            with self.changed:
                self.left.append(node)
                for job in self.hubs:
                    self.feed(job, Leave(node))
            return Answer(204)
        found = re.fullmatch(r"/jobs/([^/]+)(?:/(\w+)(?:/(\w+))?)?", path)
        if found is None or found[1] not in self.hubs:
            return problem(404, "job.unknown", "no job of that name")
        return self._job(request, node, found[1], found[2] or "", found[3] or "")

    def _enrol(self, request: Request) -> Answer:
        values, key = json.loads(request.body), request.headers.get("Idempotency-Key", "")
        with self.changed:
            if self.enrolled.get(key, ("",))[0] == values["token"]:
                credential = self.enrolled[key][1]
            elif self.tokens.get(values["token"]) == "":
                credential = f"shn_{len(self.nodes):032d}"
                self.tokens[values["token"]] = values["name"]
                self.nodes[credential] = values["name"]
                self.enrolled[key] = values["token"], credential
            else:
                return problem(401, "token.invalid", "the token is unknown or used up")
        return _json({"credential": credential, "name": values["name"], "protocol": 1}, 201)

    def _hello(self, request: Request, node: str) -> Answer:
        for job in self.hubs:
            self.feed(job, Join(node, about=parse_node_info(json.loads(request.body)["info"])))
        return _json({"name": node, "protocol": 1, "lease_s": 15.0, "heartbeat_s": 0.05, "wait_s_max": 5.0})

    def _work(self, request: Request, node: str) -> Answer:
        wait_s = float(request.query["wait_s"][0])
        held = {}
        for text in request.query.get("held", []):
            job, _, task = text.rpartition(":")
            boot, n, rev = (*map(int, task.split(".")), 0)[:3]
            held[job] = (boot, n), rev
        until = time.monotonic() + wait_s
        with self.changed:
            while not request.gone():
                for job, hub in self.hubs.items():
                    if not hub.is_poll_repeated(node):
                        self.feed(job, Poll(node))
                    answer = self._news(job, hub, node, held.get(job))
                    if answer is not None:
                        return answer
                if not self.changed.wait(until - time.monotonic()):
                    break
        return Answer(204)

    def _news(self, job: str, hub: Hub, node: str, held: tuple[TaskId, int] | None) -> Answer | None:
        standing = hub.poll_reply(node)
        if isinstance(standing, Task) and (held is None or (standing.id, standing.rev) > held):
            payload = b""
            if standing.body is not None and standing.body.nbytes <= codec.INLINE_BYTES_MAX:
                payload = self.bodies.open(standing.body)[:]
            return _frame(job, standing, payload)
        member = hub.roster.get(node)
        answered = member.last_ack.task if member is not None and member.last_ack is not None else None
        if isinstance(standing, NoTask) and held is not None and held[0] != answered:
            return _frame(job, standing)
        told = isinstance(standing, Stop) and (held is not None or standing.foreign)
        return _frame(job, standing) if told else None

    def _job(self, request: Request, node: str, job: str, what: str, digest: str) -> Answer:
        if what == "":
            hub = self.hubs[job]
            values = {"name": job, "state": hub.progress.phase, "created_at": "2026-01-01T00:00:00Z"}
            return _json({**values, "spec": self.specs[job].model_dump()})
        if what == "blobs":
            return self._body(request, node, digest)
        frame = codec.decode(request.body)
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
                return problem(422 if isinstance(error, InvalidPayload) else 409, error.code, error.message)
            self.metrics.append(report.metrics)
            self.feed(job, Report(report.node, *_rest(report)[:-1], norm))
            return _frame(job, self._ack(job, report.node, report.task))

    def _admit(self, report: Report, payload: bytes) -> float:
        if report.body is None:
            return 0.0
        if payload:
            with self.bodies.partials.incoming(report.node, report.body) as incoming:
                incoming.write(payload)
                incoming.finish()
        if not self.bodies.has(report.body.digest):
            raise Refused("upload it again", code="blob.missing")
        return measure(self.bodies.get(report.body))

    def _ack(self, job: str, node: str, task: TaskId) -> Ack:
        member = self.hubs[job].roster.get(node)
        if member is not None and member.last_ack is not None and member.last_ack.task == task:
            return member.last_ack
        return Ack(task, False, "nothing of that kind stands")

    def _body(self, request: Request, node: str, digest: str) -> Answer:
        size = self.bodies.size(digest)
        if request.method == "GET":
            if size is None:
                return problem(404, "blob.unknown")
            data = self.bodies.open(BlobRef(digest, size))[:]
            start = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
            if start is None:
                return Answer(200, data)
            said = f"bytes {start[1]}-{size - 1}/{size}"
            return Answer(206, data[int(start[1]) :], {"Content-Range": said})
        if request.method == "HEAD":
            offset = self.bodies.partials.offset(node, digest)
            return Answer(200) if size is not None else Answer(404, b"", {"Upload-Offset": str(offset)})
        said = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", request.headers.get("Content-Range", ""))
        begin, total = (int(said[1]), int(said[2])) if said else (0, len(request.body))
        try:
            with self.bodies.partials.incoming(node, BlobRef(digest, total), begin) as incoming:
                incoming.write(request.body)
                incoming.finish()
        except (InvalidPayload, Refused) as error:
            self.refused.append(error.code)
            return problem(416 if error.code == "blob.offset" else 422, error.code, error.message)
        return _json({"digest": digest, "bytes": total}, 201)


def _rest(report: Report) -> tuple[Any, ...]:
    return report.task, report.version, report.weight, report.body, report.metrics, report.norm


def _json(values: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(values).encode(), {"Content-Type": "application/json"})


def _frame(job: str, message: Any, payload: bytes = b"") -> Answer:
    return Answer(200, codec.encode(codec.Frame(job, message, payload)), {"Content-Type": codec.MEDIA_TYPE})


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: Any
    body: bytes
    connection: socket.socket

    def gone(self) -> bool:
        """Whether the other side has hung up."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    coordinator: Coordinator

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _go(self) -> None:
        coordinator, parts = self.coordinator, urlsplit(self.path)
        name = f"{self.command} {parts.path.removeprefix(PREFIX)}"
        with coordinator.changed:
            coordinator.requests[re.sub(r"[0-9a-f]{64}", "DIGEST", name)] += 1
            coordinator.changed.notify_all()
        fault = self._fault(name)
        if fault is not None and fault.kind == "lose-request":
            return self._drop(fault)
        length = int(self.headers.get("Content-Length", "0"))
        if fault is not None and fault.kind == "cut-request":
            return self._keep_half(fault, parts.path, length)
        body = self.rfile.read(length)
        coordinator.bytes_in += len(body)
        request = Request(self.command, parts.path, parse_qs(parts.query), self.headers, body, self.connection)
        status = re.search(r"\d+$", fault.kind) if fault is not None else None
        if fault is not None and status is not None:
            more = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            answer = problem(int(status[0]), fault.code, "planted", **more)
        else:
            answer = coordinator.handle(request)
        if fault is not None and fault.kind == "pause":
            answer = Answer(204, b"", {"Shoal-Retry-After": fault.pause})
        if fault is not None and fault.kind == "twice":
            answer = coordinator.handle(request)
        if coordinator.lose(request, answer):
            return self._drop(Fault("", "", ""))
        if fault is not None and fault.kind == "lose-response":
            return self._drop(fault)
        return self._send(answer, fault)

    def _fault(self, name: str) -> Fault | None:
        with self.coordinator.changed:
            for fault in self.coordinator.faults:
                method, _, path = name.partition(" ")
                if fault.method == method and re.search(fault.pattern, path):
                    self.coordinator.faults.remove(fault)
                    return fault
        return None

    def _keep_half(self, fault: Fault, path: str, length: int) -> None:
        digest = path.rpartition("/")[2]
        node = self.coordinator.nodes[self.headers["Authorization"].removeprefix("Bearer ")]
        with self.coordinator.bodies.partials.incoming(node, BlobRef(digest, length)) as incoming:
            incoming.write(self.rfile.read(length // 2))
        self._drop(fault)

    def _drop(self, fault: Fault) -> None:
        self.close_connection = True
        self.connection.close()
        fault.hit.set()

    def _send(self, answer: Answer, fault: Fault | None) -> None:
        body = answer.body
        if fault is not None and fault.kind == "corrupt":
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.send_response(answer.status)
        headers = {**answer.headers, "Content-Length": str(len(body)), "Shoal-Protocol": "1"}
        if fault is not None and fault.kind == "empty":
            headers, body = {"Content-Length": "0"}, b""
        if fault is not None and fault.kind.startswith("foreign-"):
            del headers["Shoal-Protocol"]
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if fault is not None and fault.kind == "cut":
            self.wfile.write(body[: len(body) // 2])
            return self._drop(fault)
        if self.command != "HEAD":
            self.wfile.write(body)
        if fault is not None:
            fault.hit.set()
        return None

    do_GET = do_POST = do_PUT = do_HEAD = _go


class Server(ThreadingHTTPServer):
    """Quiet about connections that clients break off."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Only what is no broken connection is worth a word."""
        import sys

        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)


@contextmanager
def serving(coordinator: Coordinator, port: int = 0) -> Iterator[str]:
    """Its address, while the block runs."""
    handler = type("Bound", (Handler,), {"coordinator": coordinator})
    server = Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def digest(data: bytes) -> str:
    return digest_of([data])

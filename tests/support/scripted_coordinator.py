"""A coordinator that answers what a test tells it to, over real HTTP, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from shoal_coordinator.schemas.jobs import JobEventView, JobView, VersionView
from shoal_coordinator.schemas.nodes import JobNode

BASE = "/api/v1"


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Problem(NamedTuple):
    """An answer that is an error."""

    status: int
    code: str = "test.problem"
    detail: str = "it went wrong"
    hint: str = "mend it"


class Raw(NamedTuple):
    """An answer as it stands."""

    body: bytes
    headers: dict[str, str] = {}  # noqa: RUF012
    status: int = 200


Answer = dict[str, Any] | Problem | Raw | None


class FakeCoordinator:
    """`answers["GET /jobs"] = {…}`; a callable is given the request. `events` are what /stream says, once each."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | Callable[[Asked], Answer]] = {}
        self.asked: list[Asked] = []
        self.events: list[Iterable[tuple[str, Any]]] = []
        self.stream: Problem | None = None
        self.hold: threading.Event | None = None
        """Streams stay open until this is set."""
        self.clock_ahead_s = 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.answer(self)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(time.time() + fake.clock_ahead_s)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, _, query = handler.path.partition("?")
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        asked = Asked(handler.command, unquote(path), query, dict(handler.headers.items()), body)
        self.asked.append(asked)
        path = asked.path.removeprefix(BASE)
        if path == "/stream" and self.stream is None:
            self._stream(handler)
            return
        unknown = Problem(404, "path.unknown", f"no {asked.method} {path}")
        usual = {"GET /alerts": {"alerts": [], "before": None}}.get(f"{asked.method} {path}", unknown)
        found = self.stream if path == "/stream" else self.answers.get(f"{asked.method} {path}", usual)
        send(handler, found(asked) if callable(found) else found)

    def _stream(self, handler: BaseHTTPRequestHandler) -> None:
        """The next script; without one the stream stays silent until the client goes."""
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        script = self.events.pop(0) if self.events else []
        for number, (name, data) in enumerate(script, 1):
            handler.wfile.write(f"event: {name}\nid: {number}\ndata: {json.dumps(data)}\n\n".encode())
            handler.wfile.flush()
        if self.hold is not None:
            self.hold.wait(60)
        handler.close_connection = True


def at(fake: FakeCoordinator) -> dict[str, str]:
    """The settings of a client there."""
    return {"SHOAL_CLIENT__URL": fake.url, "SHOAL_CLIENT__TOKEN": "sho_x"}


def send(handler: BaseHTTPRequestHandler, found: Answer) -> None:
    """One answer, as the coordinator would put it."""
    if isinstance(found, Problem):
        content = {"title": "x", "status": found.status, "detail": found.detail, "code": found.code, "hint": found.hint}
        found = Raw(json.dumps(content).encode(), {"Content-Type": "application/problem+json"}, found.status)
    elif not isinstance(found, Raw):
        found = Raw(b"" if found is None else json.dumps(found).encode(), {}, 204 if found is None else 200)
    handler.send_response(found.status)
    for name, value in {"Shoal-Protocol": "1", "Content-Length": str(len(found.body)), **found.headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(found.body)


def a_job(**changed: Any) -> dict[str, Any]:
    """A job as the API shows it; the coordinator's own shapes keep it true."""
    values = {
        "name": "digits",
        "title": "Digits",
        "state": "running",
        "state_why": "round 3: 1 reports",
        "algorithm": "fedavg",
        "schedule": "rounds",
        "version": 2,
        "versions": 5,
        "progress": 0.4,
        "eta_s": 12.0,
        "nodes": 4,
        "busy": 3,
        "created_at": "2026-01-02T03:04:05.000Z",
        "started_at": "2026-01-02T03:04:06.000Z",
        "ended_at": None,
        "model": {"digest": "0" * 64, "bytes": 19_768, "parameters": 4_810},
        "metrics": {"eval/accuracy": 0.9312, "eval/loss": 0.25},
        "best": {"accuracy": 0.9312, "version": 2},
        "up_bytes": 123_456,
        "down_bytes": 234_567,
        "spec": {"name": "digits"},
    }
    return JobView.model_validate(values | changed).model_dump(mode="json")


def a_node(name: str = "node-1", **changed: Any) -> dict[str, Any]:
    """A node of a job."""
    values = {
        "name": name,
        "state": "training",
        "progress": 0.5,
        "task": "1.7",
        "version": 2,
        "reports": 2,
        "weight": 258.0,
        "seconds": 0.12,
        "metrics": {"eval/accuracy": 0.9},
        "up_bytes": 1000,
        "down_bytes": 2000,
        "last_seen_s": 0.1,
        "failures": 0,
        "last_error": None,
        "info": {},
    }
    return JobNode.model_validate(values | changed).model_dump(mode="json")


def a_note(number: int, **changed: Any) -> dict[str, Any]:
    """A note of a job."""
    values = {"id": number, "at": "2026-01-02T03:04:05.000Z", "version": 2, "kind": "decision", "node": None}
    text = f"version {number}: 4 of 4 reports"
    return JobEventView.model_validate(values | {"text": text} | changed).model_dump(mode="json")


def a_version(number: int, **changed: Any) -> dict[str, Any]:
    """A closed version of a job."""
    values = {
        "number": number,
        "digest": f"{number:064x}",
        "bytes": 19_768,
        "why": "4 of 4 reports",
        "opened_at": "2026-01-02T03:04:05.000Z",
        "closed_at": "2026-01-02T03:04:06.000Z",
        "elapsed_s": float(number),
        "seconds": 1.0,
        "reports": 4,
        "asked": 4,
        "weight": 1150.0,
        "numbers": {},
        "metrics": {"eval/accuracy": 0.9 + number / 100},
        "up_bytes": 10,
        "down_bytes": 20,
        "total_bytes": 30 * number,
    }
    return VersionView.model_validate(values | changed).model_dump(mode="json")

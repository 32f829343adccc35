"""A coordinator for tests that records requests, and answers each from a table, over real HTTP."""

from __future__ import annotations

import fnmatch
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

from tests.support.http_servers import Asked, Said, answering
from tests.support.waiting import PATIENCE_S

BASE = "/api/v1"
PROTOCOL = {"Shoal-Protocol": "1"}
USUAL = {"GET /split": {"split_jobs": []}, "GET /alerts": {"alerts": [], "before": None}}
"""Answers of requests that are not in the table."""


class Problem(NamedTuple):
    """An answer that is an error."""

    status: int
    code: str = "test.problem"
    detail: str = "it went wrong"
    hint: str = "mend it"


Answer = dict[str, Any] | Problem | Said | None
"""JSON, an error, any other answer, or 204."""


class FakeCoordinator:
    """A table of answers: `answers["GET /jobs"] = {…}`; `*` in a key is any text; a callable is given the request.

    `events`: what `/stream` tells, one script for each connection. `hold`: streams stay open until it is set.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer | Callable[[Asked], Answer]] = {}
        self.asked: list[Asked] = []
        self.events: list[Iterable[tuple[str, Any]]] = []
        self.hold: threading.Event | None = None
        self.url = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.url = self._stack.enter_context(answering(self.answer))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def answer(self, asked: Asked) -> Said | None:
        """Record a request, and return the answer of the first entry that matches."""
        self.asked.append(asked)
        key = f"{asked.method} {asked.path.removeprefix(BASE)}"
        usual = {**USUAL, "GET /stream": self._stream}.get(key, Problem(404, "path.unknown", f"no {key}"))
        found = next((entry for name, entry in self.answers.items() if fnmatch.fnmatchcase(key, name)), usual)
        return response(found(asked) if callable(found) else found)

    def _stream(self, asked: Asked) -> Said:
        script = self.events.pop(0) if self.events else []
        return Said(200, self._pieces(script), {"Content-Type": "text/event-stream"})

    def _pieces(self, script: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
        for number, (name, data) in enumerate(script, 1):
            yield f"event: {name}\nid: {number}\ndata: {json.dumps(data)}\n\n".encode()
        if self.hold is not None:
            self.hold.wait(PATIENCE_S)


def at(fake: FakeCoordinator) -> dict[str, str]:
    """Return the settings of a client of this coordinator."""
    return {"SHOAL_CLIENT__URL": fake.url, "SHOAL_CLIENT__TOKEN": "sho_x"}


def response(found: Answer) -> Said:
    """Return an answer as the coordinator would put it."""
    if isinstance(found, Said):
        return found
    if isinstance(found, Problem):
        content = {"title": "x", "status": found.status, "detail": found.detail, "code": found.code, "hint": found.hint}
        return as_json(content, found.status, "application/problem+json")
    return Said(204) if found is None else as_json(found)


def as_json(values: Any, status: int = 200, media_type: str = "application/json") -> Said:
    """Return an answer in JSON."""
    return raw(json.dumps(values).encode(), {"Content-Type": media_type}, status)


def raw(body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> Said:
    """Return an answer with any body."""
    return Said(status, body, {**PROTOCOL, **(headers or {})})

"""The two requests that nodes make most, past the framework: the poll, and the report.

FastAPI's way to a route is eight layers, a search among all routes and parameters read by their annotations: three
quarters of the processor time of a poll. Here only what has exactly the form that our own clients send is taken, and
the functions that answer are the routes' own. Whatever else is asked for, or is wrong, goes the long way.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from fastapi import FastAPI, Request, Response
from sqlalchemy.exc import OperationalError
from starlette.requests import ClientDisconnect

from shoal.core.errors import ShoalError
from shoal_coordinator import problems
from shoal_coordinator.access import node_of
from shoal_coordinator.guard import Receive, Send
from shoal_coordinator.hearing import Hearing
from shoal_coordinator.metrics import ROUTE_KEY
from shoal_coordinator.routes.work import answer_poll
from shoal_coordinator.service import Coordinator

WORK = "/api/v1/work"
REPORTS = "/api/v1/jobs/{job}/reports"
WAIT_S_MAX = 300.0
LISTED_MAX = 64
_REPORTS = re.compile(r"/api/v1/jobs/([a-z0-9._-]+)/reports")
_SECONDS = re.compile(r"\d{1,3}(\.\d{1,9})?", re.ASCII)


class Asked(NamedTuple):
    """What a poll asks for."""

    wait_s: float
    held: list[str]
    jobs: list[str]


def asked(query: str) -> Asked | None:
    """A poll's parameters; None if anything about them is unusual."""
    lists: dict[str, list[str]] = {"wait_s": [], "held": [], "job": []}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name not in lists:
            return None
        lists[name].append(unquote_plus(value))
    waits, held, jobs = lists.values()
    if len(waits) != 1 or not _SECONDS.fullmatch(waits[0]) or max(len(held), len(jobs)) > LISTED_MAX:
        return None
    wait_s = float(waits[0])
    return Asked(wait_s, held, jobs) if wait_s <= WAIT_S_MAX else None


class Express:
    """An ASGI application around the whole one, inside the guard."""

    def __init__(self, app: FastAPI, coordinator: Coordinator) -> None:
        self.app, self.coordinator = app, coordinator

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        poll = asked(scope["query_string"].decode("latin-1")) if method == "GET" and path == WORK else None
        job = _REPORTS.fullmatch(path) if method == "POST" and not scope["query_string"] else None
        if poll is None and job is None:
            await self.app(scope, receive, send)
            return
        scope["app"] = self.app
        scope[ROUTE_KEY] = WORK if poll is not None else REPORTS
        request, failure = Request(scope, receive), None
        try:
            answer = await (
                self._poll(request, poll) if poll is not None else self._report(request, job[1] if job else "")
            )
        except ShoalError as error:
            answer = problems.of(error, path)
        except ClientDisconnect:
            return  # nobody is there to be answered
        except OperationalError as error:
            answer = problems.unreadable(error, path)
        except Exception as error:  # noqa: BLE001 - raised again, as the framework does, when the node has its answer
            answer, failure = problems.unexpected(error, path), error
        await answer(scope, receive, send)
        if failure is not None:
            raise failure

    async def _poll(self, request: Request, poll: Asked) -> Response:
        node = node_of(request)
        return await answer_poll(request, self.coordinator, node, *poll)

    async def _report(self, request: Request, job: str) -> Response:
        node = node_of(request)
        return await Hearing(request, self.coordinator, job, node).report(partial(_body, request))


async def _body(request: Request) -> bytes:
    """A request's whole body: nearly always one piece, for which the framework's way of joining pieces is long."""
    message = await request.receive()
    data: bytes = message.get("body", b"")
    whole = message["type"] == "http.request" and not message.get("more_body", False)
    return data if whole else data + await request.body()

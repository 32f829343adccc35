"""The requests that nodes make in each round, past the framework: polls, reports, downloads and uploads of blobs.

FastAPI's way to a route is eight layers, a search among all routes and parameters read by their annotations: three
quarters of the processor time of a poll, a sixth of a round of ten models of 10 MB. This path takes only requests in
exactly the form of our own clients, and answers them by the routes' own functions. Other requests, and wrong ones, pass
through FastAPI.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from fastapi import FastAPI, Request, Response
from sqlalchemy.exc import OperationalError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

from shoal.core.errors import ShoalError
from shoal_coordinator.api.authentication import node_of, principal_of, speaker_of
from shoal_coordinator.api.dependencies import coordinator_of
from shoal_coordinator.api.routes import blobs
from shoal_coordinator.http import problems
from shoal_coordinator.node_protocol.report_pipeline import ReportPipeline
from shoal_coordinator.telemetry.metrics import ROUTE_KEY

WORK = "/api/v1/work"
REPORTS = "/api/v1/jobs/{job}/reports"
BLOBS = "/api/v1/jobs/{job}/blobs/{digest}"
WAIT_S_MAX = 300.0
LISTED_MAX = 64
_REPORTS = re.compile(r"/api/v1/jobs/([a-z0-9._-]+)/reports")
_BLOBS = re.compile(r"/api/v1/jobs/([a-z0-9._-]+)/blobs/([0-9a-f]{64})")
_SECONDS = re.compile(r"\d{1,3}(\.\d{1,9})?", re.ASCII)


class PollQuery(NamedTuple):
    """Parameters of a poll."""

    wait_s: float
    held: list[str]
    jobs: list[str]


def parse_poll(query: str) -> PollQuery | None:
    """Return a poll's parameters; None if any of them is unusual."""
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
    return PollQuery(wait_s, held, jobs) if wait_s <= WAIT_S_MAX else None


class FastPath:
    """An ASGI middleware around the application, inside `RequestLimits`."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        taken = self._match(scope)
        if taken is None:
            await self.app(scope, receive, send)
            return
        scope["app"], path = self.app, scope["path"]
        scope[ROUTE_KEY], answer_to = taken
        failure = None
        try:
            answer = await answer_to(Request(scope, receive))
        except ShoalError as error:
            answer = problems.of(error, path)
        except ClientDisconnect:
            return  # the client is gone
        except OperationalError as error:
            answer = problems.unreadable(error, path)
        except Exception as error:  # noqa: BLE001 - raised again, as the framework does, when the node has its answer
            answer, failure = problems.unexpected(error, path), error
        await answer(scope, receive, send)
        if failure is not None:
            raise failure

    def _match(self, scope: Any) -> tuple[str, Callable[[Request], Awaitable[Response]]] | None:
        """Return the route of a request and what answers it; None if it takes the usual way."""
        path, method = scope["path"], scope["method"]
        if method == "GET" and path == WORK:
            poll = parse_poll(scope["query_string"].decode("latin-1"))
            return None if poll is None else (WORK, partial(self._poll, poll))
        if scope["query_string"]:
            return None
        if method == "POST" and (report := _REPORTS.fullmatch(path)):
            return REPORTS, partial(self._report, report[1])
        if method in ("GET", "PUT") and (blob := _BLOBS.fullmatch(path)):
            scope["path_params"] = {"job": blob[1], "digest": blob[2]}
            answer_to = self._download if method == "GET" else self._upload
            return BLOBS, partial(answer_to, blob[1], blob[2])
        return None

    async def _poll(self, poll: PollQuery, request: Request) -> Response:
        node = node_of(request)
        return await coordinator_of(request).parts.task_polls.answer(
            request, node, *poll, partial(principal_of, request)
        )

    async def _report(self, job: str, request: Request) -> Response:
        node = node_of(request)
        services = coordinator_of(request).parts.node_services
        return await ReportPipeline(request, services, job, node).handle_report(partial(_body, request))

    async def _download(self, job: str, digest: str, request: Request) -> Response:
        found = coordinator_of(request)
        reader = found.parts.version_reader
        return await blobs.download_blob(job, digest, request, found.jobs, found.blobs, found.nodes.presence, reader)

    async def _upload(self, job: str, digest: str, request: Request) -> Response:
        found, made = coordinator_of(request), Response()
        node = speaker_of(request, node_of(request))
        stored = await blobs.upload_update(
            job, digest, request, made, node, found.jobs, found.nodes.presence, found.telemetry.metrics
        )
        return Response(stored.model_dump_json(), made.status_code, media_type="application/json")


async def _body(request: Request) -> bytes:
    """Return a request's body, which is nearly always one piece; the framework's joining of pieces is slow."""
    message = await request.receive()
    data: bytes = message.get("body", b"")
    whole = message["type"] == "http.request" and not message.get("more_body", False)
    return data if whole else data + await request.body()

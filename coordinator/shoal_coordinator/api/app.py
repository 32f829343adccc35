"""The FastAPI application: routes, errors, and the dashboard's files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

import shoal_dashboard
from shoal import __version__
from shoal.core.errors import Refused
from shoal_coordinator.api.routes import (
    analyses,
    blobs,
    control,
    drafts,
    health,
    internal,
    jobs,
    models,
    nodes,
    observe,
    peers,
    presigned_urls,
    re_enrolment,
    relay,
    reports,
    split,
    stream,
    system_metrics,
    tokens,
    work,
)
from shoal_coordinator.api.static_files import ASK_FIRST, StaticAssets, built_file
from shoal_coordinator.http import problems
from shoal_coordinator.http.compression import Compression
from shoal_coordinator.http.text_checks import TextChecks
from shoal_coordinator.node_protocol.byte_labels import label

ROUTES = (
    work,
    split,
    blobs,
    presigned_urls,
    peers,
    relay,
    re_enrolment,
    drafts,
    jobs,
    control,
    models,
    analyses,
    reports,
    nodes,
    tokens,
    system_metrics,
    observe,
    stream,
)
"""Tried in this order: what nodes ask comes first."""

DESCRIPTION = """Federated learning. People and the command line use the JSON routes; nodes use the routes tagged
*node*, whose bodies are frames (docs/reference/protocol.md). Errors are RFC 9457 problems with `code` and `hint`."""
NO_DASHBOARD = f"""<!doctype html><title>shoal</title><h1>shoal</h1>
<p>The coordinator runs, but the dashboard was not built into this installation:
{shoal_dashboard.TO_BUILD}. The API is at <a href="/docs">/docs</a>.
"""


def create_app(coordinator: object) -> FastAPI:
    """Create the application without its request limits. The caller starts and stops the coordinator."""
    app = FastAPI(
        title="shoal coordinator",
        version=__version__,
        description=DESCRIPTION,
        responses=problems.EVERYWHERE,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # each request would look for it; see /metrics
    )
    app.state.coordinator = coordinator
    problems.install(app)
    app.add_middleware(TextChecks)
    app.add_middleware(Compression)
    _serve_document(app)
    for module in (*ROUTES, health, internal):
        app.router.routes.extend(module.router.routes)
    _serve_dashboard(app, shoal_dashboard.assets())
    return app


def _serve_document(app: FastAPI) -> None:
    """Serve the OpenAPI document, rendered once, without authentication."""
    at = next(place for place, route in enumerate(app.router.routes) if getattr(route, "path", "") == app.openapi_url)
    made: list[bytes] = []

    async def openapi(_request: Request) -> Response:
        if not made:
            made.append(await asyncio.to_thread(lambda: bytes(JSONResponse(app.openapi()).body)))
        return Response(made[0], media_type="application/json")

    app.router.routes[at] = Route(app.openapi_url or "", openapi, include_in_schema=False)


def _serve_dashboard(app: FastAPI, assets: Path | None) -> None:
    """Serve the built files; other paths outside the API get the page, whose script resolves them."""
    files = {file.name for file in assets.iterdir() if file.is_file()} if assets is not None else set()
    if assets is not None:
        app.mount("/assets", StaticAssets(directory=assets / "assets"), name="assets")

    @app.api_route(problems.PAGE, methods=["GET", "HEAD"], include_in_schema=False)
    async def page(path: str, request: Request) -> Response:
        label(request, kind="dashboard")
        if path.startswith("api/"):
            if problems.allowed(request):  # else this route hides from the router that it is only the method
                raise HTTPException(405)
            raise Refused(f"no such path: /{path}", code="path.unknown", hint="see /docs")
        if assets is None:
            return HTMLResponse(NO_DASHBOARD)
        name = path if path in files else "index.html"
        return built_file(assets / name, Headers(scope=request.scope), ASK_FIRST)

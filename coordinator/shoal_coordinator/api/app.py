"""The FastAPI application: routes, errors, the guard around it all, and the dashboard's files."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

import shoal_dashboard
from shoal import __version__
from shoal.core.errors import Refused, StorageFailed
from shoal.runtime.store import write_file
from shoal_coordinator import problems
from shoal_coordinator.access import label
from shoal_coordinator.comparing import Comparing
from shoal_coordinator.compression import Compression
from shoal_coordinator.routes import (
    bodies,
    compare,
    control,
    drafts,
    export,
    health,
    influence,
    inside,
    job_settings,
    jobs,
    models,
    nodes,
    observe,
    peers,
    readmission,
    relay,
    reports,
    stream,
    system_metrics,
    targets,
    tokens,
    work,
)
from shoal_coordinator.service import Coordinator
from shoal_coordinator.settings import Settings
from shoal_coordinator.static_files import ASK_FIRST, Assets, built_file
from shoal_coordinator.texts import Texts

ROUTES = (
    work,
    bodies,
    targets,
    peers,
    relay,
    readmission,
    drafts,
    jobs,
    control,
    job_settings,
    compare,
    models,
    export,
    reports,
    influence,
    nodes,
    tokens,
    system_metrics,
    observe,
    stream,
)
"""Tried in this order: what nodes ask comes first."""

DESCRIPTION = """Federated learning, coordinated. People and the command line use the JSON routes; nodes use the routes
tagged *node*, whose bodies are frames (docs/protocol.md). Errors are RFC 9457 problems with a `code` and a `hint`."""
NO_DASHBOARD = f"""<!doctype html><title>shoal</title><h1>shoal</h1>
<p>The coordinator runs, but the dashboard was not built into this installation:
{shoal_dashboard.TO_BUILD}. The API is at <a href="/docs">/docs</a>.
"""


def operator_token(settings: Settings) -> str:
    """The operators' token: from the settings, or the one in the data folder, made at the first start."""
    if settings.operator_token:
        return settings.operator_token
    path = settings.data / "operator.token"
    try:
        known = path.read_text().strip() if path.exists() else ""
        if known:  # an empty file would let everybody in
            return known
        settings.data.mkdir(parents=True, exist_ok=True)
        token = "sho_" + secrets.token_urlsafe(32)
        write_file(path, f"{token}\n".encode(), "token")
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}", hint="choose another folder with --data") from None
    return token


def create_app(coordinator: Coordinator) -> FastAPI:
    """The application without its guard. Whoever serves it starts and stops the coordinator."""
    app = FastAPI(
        title="shoal coordinator",
        version=__version__,
        description=DESCRIPTION,
        responses=problems.EVERYWHERE,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # each request would look for it; see /metrics
    )
    app.state.coordinator = coordinator
    app.state.comparing = Comparing()
    problems.install(app)
    app.add_middleware(Texts)
    app.add_middleware(Compression)
    _serve_document(app)
    for module in ROUTES:
        app.include_router(module.router, prefix="/api/v1")
    app.include_router(health.router)
    app.include_router(inside.router)
    _serve_dashboard(app, shoal_dashboard.assets())
    return app


def _serve_document(app: FastAPI) -> None:
    """The OpenAPI document as bytes that are made once: anybody may ask for it."""
    at = next(place for place, route in enumerate(app.router.routes) if getattr(route, "path", "") == app.openapi_url)
    made: list[bytes] = []

    async def openapi(_request: Request) -> Response:
        if not made:
            made.append(await asyncio.to_thread(lambda: bytes(JSONResponse(app.openapi()).body)))
        return Response(made[0], media_type="application/json")

    app.router.routes[at] = Route(app.openapi_url or "", openapi, include_in_schema=False)


def _serve_dashboard(app: FastAPI, assets: Path | None) -> None:
    """The built files; any other path that is not the API's gets the page, whose script finds its own way."""
    files = {file.name for file in assets.iterdir() if file.is_file()} if assets is not None else set()
    if assets is not None:
        app.mount("/assets", Assets(directory=assets / "assets"), name="assets")

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

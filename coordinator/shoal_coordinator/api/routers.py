"""The routers of the API's modules.

FastAPI builds the routes of an included router once more at the first request, for 0.3 s in which no node is answered.
So a router has the prefix and the responses of the whole API, and the application takes its routes as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from shoal_coordinator.http.problems import EVERYWHERE

API = "/api/v1"
"""Prefix of all routes of people, programs and nodes."""


def api_router(*, prefix: str = "", tags: Any = None, responses: Mapping[int | str, Any] | None = None) -> APIRouter:
    """Return the router of a module, whose routes begin with `API` and `prefix`."""
    everywhere = {**EVERYWHERE, **(responses or {})}
    return APIRouter(prefix=API + prefix, tags=tags, responses=everywhere, generate_unique_id_function=operation_id)


def operation_id(route: APIRoute) -> str:
    """Return the name of a route's function, which generated clients give to their methods."""
    return route.name

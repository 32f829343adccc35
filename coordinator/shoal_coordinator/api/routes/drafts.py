"""Validation of job files."""

from __future__ import annotations

import tomllib
from typing import Any

from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from shoal.core.errors import InvalidJob
from shoal.jobs.spec import check_job
from shoal.validation.config_errors import ConfigError
from shoal_coordinator.api.authentication import Operator
from shoal_coordinator.api.dependencies import Registry
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http.problems import errors
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.schemas.jobs import DraftCheck, FieldError, JobDraft
from shoal_coordinator.schemas.values import JsonObject

router = api_router(tags=["jobs"], responses=errors(401, 403))

LINE_CHARS_MAX = 4096
"""Maximum length of a line of TOML: the cost of a dotted key grows with the square of its length."""

_PLAIN: TypeAdapter[dict[str, Any]] = TypeAdapter(JsonObject)


@router.post("/jobs:validate")
async def check_draft(body: JobDraft, request: Request, _: Operator, registry: Registry) -> DraftCheck:
    """Validate a job file and return all errors with their places. A held-out learner is not loaded."""
    label(request, kind="dashboard")
    try:
        values = body.spec if body.spec is not None else _read(body.toml or "")
    except InvalidJob as error:
        return DraftCheck(spec={}, mistakes=[_shown(ConfigError((), error.message, error.hint))])
    mistakes = [*check_job(values), *_taken(registry, values)]
    return DraftCheck(spec=values, mistakes=[_shown(mistake) for mistake in mistakes])


def _read(text: str) -> dict[str, Any]:
    """Parse TOML. Raises `InvalidJob`."""
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LINE_CHARS_MAX:
            raise InvalidJob(f"line {number} has more than {LINE_CHARS_MAX} characters")
    try:
        return _PLAIN.validate_python(tomllib.loads(text))
    except ValidationError as error:
        raise InvalidJob(error.errors(include_url=False, include_input=False)[0]["msg"]) from None
    except RecursionError:
        raise InvalidJob("nested too deep") from None
    except ValueError as error:  # tomllib's own, and that of a number with thousands of digits
        raise InvalidJob(str(error), hint="see docs/reference/job.md") from None


def _taken(registry: JobRegistry, values: dict[str, Any]) -> list[ConfigError]:
    name = values.get("name")
    if not isinstance(name, str) or not registry.has_job(name):
        return []
    return [ConfigError(("name",), f"a job called {name} exists", "choose another name")]


def _shown(mistake: ConfigError) -> FieldError:
    return FieldError(place=list(mistake.place), text=mistake.text, hint=mistake.hint)

"""Job files that are still being written: what they say, and what is wrong with them. Nothing is begun or kept."""

from __future__ import annotations

import tomllib
from typing import Any

from fastapi import APIRouter, Request
from pydantic import TypeAdapter, ValidationError

from shoal.core.errors import InvalidJob
from shoal.mistakes import Mistake
from shoal.spec import check_job
from shoal_coordinator import views
from shoal_coordinator.access import Coord, Operator, label
from shoal_coordinator.problems import errors
from shoal_coordinator.service import Coordinator

router = APIRouter(tags=["jobs"], responses=errors(401, 403))

LINE_CHARS_MAX = 4096
"""Of a TOML text: what a dotted key costs to read grows with the square of its length."""

_PLAIN: TypeAdapter[dict[str, Any]] = TypeAdapter(views.Plain)


@router.post("/drafts/check")
async def check(body: views.Draft, request: Request, _: Operator, coordinator: Coord) -> views.Checked:
    """What is wrong with a job file, each at its place; nothing begins. A held-out learner is not loaded."""
    label(request, kind="dashboard")
    try:
        values = body.spec if body.spec is not None else _read(body.toml or "")
    except InvalidJob as error:
        return views.Checked(spec={}, mistakes=[_shown(Mistake((), error.message, error.hint))])
    mistakes = [*check_job(values), *_taken(coordinator, values)]
    return views.Checked(spec=values, mistakes=[_shown(mistake) for mistake in mistakes])


def _read(text: str) -> dict[str, Any]:
    """The values of a TOML text. Raises `InvalidJob`."""
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
        raise InvalidJob(str(error), hint="see docs/job.md") from None


def _taken(coordinator: Coordinator, values: dict[str, Any]) -> list[Mistake]:
    name = values.get("name")
    if not isinstance(name, str) or not coordinator.knows(name):
        return []
    return [Mistake(("name",), f"a job called {name} exists", "choose another name")]


def _shown(mistake: Mistake) -> views.Mistake:
    return views.Mistake(place=list(mistake.place), text=mistake.text, hint=mistake.hint)

"""Changing the settings of a job that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from shoal.core.errors import InvalidJob, Refused
from shoal.core.hub import Hub
from shoal.core.message import Change
from shoal.core.settings_change import ROUNDS, changeable
from shoal.spec import JobSpec, parse_job
from shoal_coordinator import views
from shoal_coordinator.access import Coord, Operator
from shoal_coordinator.problems import errors
from shoal_coordinator.routes.control import described

router = APIRouter(tags=["jobs"], responses=errors(401, 403, 404))


class Settings(BaseModel):
    """Settings of a job that are to have other values, by their keys in the job file."""

    values: dict[str, float] = Field(min_length=1, max_length=32, examples=[{"algorithm.lr": 0.05}])
    why: str = Field("", max_length=1000)


@router.patch("/jobs/{job}", responses=errors(409))
async def change(job: str, body: Settings, _: Operator, coordinator: Coord) -> views.Job:
    """Let settings have other values from the job's next version on; at once, where none is being made."""
    driver = coordinator.driver(job)
    await driver.settled()
    check(driver.hub, driver.spec, body.values)
    await driver.tell(Change(body.values, body.why or Change.why))
    return await described(coordinator, job)


def check(hub: Hub, spec: JobSpec, values: Mapping[str, float]) -> None:
    """Raise `InvalidJob` for settings that may not change, or not so; `Refused` where they may not change now."""
    allowed = changeable(hub.algorithm, hub.schedule)
    fixed = [key for key in values if key not in allowed]
    if fixed:
        raise InvalidJob(
            f"{', '.join(fixed)[:200]} cannot be changed while the job runs",
            code="job.fixed",
            hint=f"these can: {', '.join(allowed)}; for anything else: shoal jobs clone {spec.name} --set KEY=VALUE",
        )
    if hub.mode != "server":
        raise Refused(
            f"job {spec.name} is with its nodes, which go on with the settings that they have",
            code="job.away",
            hint=f"bring it back first: shoal switch {spec.name} server",
        )
    if hub.phase not in ("waiting", "running"):
        raise Refused(f"the training of job {spec.name} is over", code="job.trained", hint="begin another with a clone")
    if ROUNDS in values and values[ROUNDS] <= hub.version:
        raise InvalidJob(
            f"rounds is {values[ROUNDS]:g}, but there are {hub.version} versions already",
            hint=f"shoal jobs stop {spec.name} ends the job",
        )
    parse_job(merged(spec, {**hub.changed, **hub.awaited, **values}))


def merged(spec: JobSpec, values: Mapping[str, float]) -> dict[str, Any]:
    """Return the job file with these values."""
    made = spec.model_dump(mode="json")
    for key, value in values.items():
        table, _, field = key.rpartition(".")
        (made[table] if table else made)[field] = int(value) if value == value // 1 else value
    return made

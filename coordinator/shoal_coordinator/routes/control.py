"""What operators do to a job that is there: pause, resume, stop, switch, tag."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request

from shoal.core.errors import Refused
from shoal.core.message import Pause, Resume, Stop, Switch
from shoal.core.words import counted
from shoal_coordinator import describe, removal, views
from shoal_coordinator.access import Coord, Operator, Reader, label
from shoal_coordinator.driver import Driver
from shoal_coordinator.problems import errors
from shoal_coordinator.service import Coordinator

router = APIRouter(tags=["jobs"], responses=errors(401, 403, 404))


async def described(coordinator: Coordinator, name: str) -> views.Job:
    """A job as it stands now."""
    return await describe.job(coordinator, coordinator.record(name))


@router.put("/jobs/{job}/tags")
async def tag(job: str, body: views.Tags, _: Operator, coordinator: Coord) -> views.Job:
    """Give a job tags, instead of those that it had; one that has ended, too."""
    await coordinator.tag(job, tuple(body.tags))
    return await described(coordinator, job)


@router.delete("/jobs/{job}", status_code=204, responses=errors(409))
async def remove(job: str, _: Operator, coordinator: Coord) -> None:
    """Remove a job that has ended, for good: its models, and everything that is known of it."""
    await removal.remove(coordinator, job)


@router.post("/jobs/{job}/pause", responses=errors(409))
async def pause(job: str, body: views.Why, _: Operator, coordinator: Coord) -> views.Job:
    """Ask nothing new until it is resumed; reports that come still count."""
    await coordinator.driver(job).tell(Pause(body.why or Pause.why))
    return await described(coordinator, job)


@router.post("/jobs/{job}/resume", responses=errors(409))
async def resume(job: str, body: views.Why, _: Operator, coordinator: Coord) -> views.Job:
    """Go on after a pause."""
    await coordinator.driver(job).tell(Resume(body.why or Resume.why))
    return await described(coordinator, job)


@router.post("/jobs/{job}/stop", responses=errors(409))
async def stop(job: str, body: views.Why, _: Operator, coordinator: Coord) -> views.Job:
    """End a job, now or when the round in hand has closed."""
    await coordinator.driver(job).tell(Stop(body.why or Stop.why, body.when))
    coordinator.bells.ring()
    return await described(coordinator, job)


@router.post("/jobs/{job}/switch", responses=errors(409))
async def switch(job: str, body: views.Switch, _: Operator, coordinator: Coord) -> views.Job:
    """Let the nodes carry a running job on among themselves, or have them hand it back. Twice is once."""
    driver = coordinator.driver(job)
    await driver.settled()
    if _would_move(driver, body.to):
        await driver.tell(Switch(body.to, body.why or Switch.why))
    return await described(coordinator, job)


def _would_move(driver: Driver, to: Literal["gossip", "server"]) -> bool:
    """Whether a switch would change anything. Raises `Refused` where it must not be made, or not now."""
    hub, name = driver.hub, driver.name
    if to == "gossip":
        _check_may_go(driver)
    moves = hub.mode == ("away" if to == "server" else "server")
    if moves and hub.paused_at is not None:
        raise Refused(
            f"job {name} is paused, so nothing is asked of its nodes",
            code="switch.paused",
            hint=f"resume it first: shoal jobs resume {name}",
        )
    return moves


def _check_may_go(driver: Driver) -> None:
    """Raise `Refused` when the job must not go to its nodes, or not now."""
    hub, name = driver.hub, driver.name
    driver.check_gossip()
    if hub.phase == "waiting":
        raise Refused(
            f"job {name} has no model yet that its nodes could carry on",
            code="switch.no-model",
            hint="wait for version 0: a node makes it when it joins",
        )
    if hub.phase != "running":
        raise Refused(
            f"the training of job {name} is over",
            code="switch.over",
            hint="nothing is left to be carried on; it ends when its final model is measured",
        )
    if hub.mode == "returning":
        raise Refused(
            f"the nodes of job {name} are handing back what they have",
            code="switch.returning",
            hint=f"wait until it is back: shoal jobs show {name}",
        )


@router.get("/jobs/{job}/switch", responses=errors(409))
async def preview(
    job: str, request: Request, _: Reader, coordinator: Coord, to: Annotated[Literal["gossip", "server"], Query()]
) -> views.Move:
    """What a switch would do, if it were made now, and which nodes would take part. Nothing is changed."""
    label(request, kind="dashboard")
    driver = coordinator.driver(job)
    await driver.settled()
    here = [member.node for member in driver.hub.roster.here()]
    able = [node for node in here if coordinator.papers.contact(node) is not None]
    hint = ""
    try:
        possible = _would_move(driver, to)
        why = _effect(driver, to, len(able)) if possible else f"job {job} is there already"
    except Refused as error:
        possible, why, hint = False, error.message, error.hint
    unable = [node for node in here if node not in able]
    version = driver.hub.version
    return views.Move(to=to, possible=possible, why=why, hint=hint, version=version, asked=able, unable=unable)


def _effect(driver: Driver, to: Literal["gossip", "server"], able: int) -> str:
    nodes, one, version = counted(able, "node"), able == 1, driver.hub.version
    if to == "server":
        asked = f"{nodes} {'is' if one else 'are'} asked for what {'it has' if one else 'they have'} learned"
        return f"{asked}; the mean becomes version {version + 1}"
    return f"{nodes} {'carries' if one else 'carry'} the job on from version {version}; none is made here meanwhile"

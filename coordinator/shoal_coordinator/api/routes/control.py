"""Operations on an existing job: pause, resume, stop, switch, tag, change settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field, FiniteFloat

from shoal.core.errors import InvalidJob, Refused
from shoal.core.errors.phrases import counted
from shoal.core.job.settings_change import ROUNDS, changeable
from shoal.core.protocol.machine import JobEvent
from shoal.core.protocol.message import ChangeSettings, Pause, Resume, Stop, SwitchMode
from shoal.core.server.hub import Hub
from shoal.jobs.spec import JobSpec, parse_job
from shoal_coordinator.api.authentication import DashboardReader, Operator
from shoal_coordinator.api.dependencies import Documents, Lifecycle, NodeWakeups, Presenter, Registry
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http.problems import errors
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.presenters.job_presenter import JobPresenter
from shoal_coordinator.schemas.jobs import JobView, ReasonRequest, SwitchPreview, SwitchRequest, TagsRequest

router = api_router(tags=["jobs"], responses=errors(401, 403, 404))


async def described(registry: JobRegistry, presenter: JobPresenter, name: str) -> JobView:
    """Return the current state of a job."""
    return await presenter.job(registry.job(name))


@router.put("/jobs/{job}/tags")
async def set_tags(
    job: str, body: TagsRequest, _: Operator, registry: Registry, lifecycle: Lifecycle, presenter: Presenter
) -> JobView:
    """Replace the tags of a job, also of one that has ended."""
    await lifecycle.set_tags(job, tuple(body.tags))
    return await described(registry, presenter, job)


@router.delete("/jobs/{job}", status_code=204, responses=errors(409))
async def remove_job(job: str, _: Operator, lifecycle: Lifecycle) -> None:
    """Delete an ended job with its models and records."""
    await lifecycle.remove_job(job)


@router.post("/jobs/{job}/pause", responses=errors(409))
async def pause_job(job: str, body: ReasonRequest, _: Operator, registry: Registry, presenter: Presenter) -> JobView:
    """Pause a job: nodes get no new tasks; reports still count."""
    await registry.runner(job).submit(Pause(body.why or Pause.why))
    return await described(registry, presenter, job)


@router.post("/jobs/{job}/resume", responses=errors(409))
async def resume_job(job: str, body: ReasonRequest, _: Operator, registry: Registry, presenter: Presenter) -> JobView:
    """Resume a paused job."""
    await registry.runner(job).submit(Resume(body.why or Resume.why))
    return await described(registry, presenter, job)


@router.post("/jobs/{job}/stop", responses=errors(409))
async def stop_job(
    job: str, body: ReasonRequest, _: Operator, registry: Registry, presenter: Presenter, wakeups: NodeWakeups
) -> JobView:
    """Stop a job, now or after the current round."""
    await registry.runner(job).submit(Stop(body.why or Stop.why, body.when))
    wakeups.notify_all()
    return await described(registry, presenter, job)


@router.post("/jobs/{job}/switch", responses=errors(409))
async def switch_mode(job: str, body: SwitchRequest, _: Operator, registry: Registry, presenter: Presenter) -> JobView:
    """Switch a running job to gossip, or back to the server. Idempotent."""
    runner = registry.runner(job)
    await runner.gate.wait_consistent()
    if _would_move(runner, body.to):
        await runner.submit(SwitchMode(body.to, body.why or SwitchMode.why))
    return await described(registry, presenter, job)


def _would_move(runner: JobRunner, to: Literal["gossip", "server"]) -> bool:
    """Return whether a switch would change the mode. Raises `Refused` when it is not possible."""
    hub, name = runner.hub, runner.name
    if to == "gossip":
        _check_may_go(runner)
    moves = hub.progress.mode == ("gossip" if to == "server" else "server")
    if moves and hub.progress.paused_at is not None:
        raise Refused(
            f"job {name} is paused, so nothing is asked of its nodes",
            code="switch.paused",
            hint=f"resume it first: shoal jobs resume {name}",
        )
    return moves


def _check_may_go(runner: JobRunner) -> None:
    """Raise `Refused` when the job cannot switch to gossip now."""
    hub, name = runner.hub, runner.name
    runner.check_gossip()
    if hub.progress.phase == "waiting":
        raise Refused(
            f"job {name} has no model yet, so its nodes cannot continue it",
            code="switch.no-model",
            hint="wait for version 0: a node makes it when it joins",
        )
    if hub.progress.phase != "running":
        raise Refused(
            f"the training of job {name} is over",
            code="switch.over",
            hint="the job ends when its final model is measured",
        )
    if hub.progress.mode == "returning":
        raise Refused(
            f"the nodes of job {name} are handing their models back",
            code="switch.returning",
            hint=f"wait until it is back: shoal jobs show {name}",
        )


@router.get("/jobs/{job}/switch", responses=errors(409))
async def preview_switch(
    job: str,
    _: DashboardReader,
    registry: Registry,
    documents: Documents,
    to: Annotated[Literal["gossip", "server"], Query()],
) -> SwitchPreview:
    """Preview a switch and the nodes that would take part, without a change."""
    runner = registry.runner(job)
    await runner.gate.wait_consistent()
    here = [member.node for member in runner.hub.roster.present_members()]
    able = [node for node in here if documents.contact(node) is not None]
    hint = ""
    try:
        possible = _would_move(runner, to)
        why = _effect(runner, to, len(able)) if possible else f"job {job} is there already"
    except Refused as error:
        possible, why, hint = False, error.message, error.hint
    unable = [node for node in here if node not in able]
    version = runner.hub.progress.version
    return SwitchPreview(to=to, possible=possible, why=why, hint=hint, version=version, asked=able, unable=unable)


def _effect(runner: JobRunner, to: Literal["gossip", "server"], able: int) -> str:
    nodes, one, version = counted(able, "node"), able == 1, runner.hub.progress.version
    if to == "server":
        asked = f"{nodes} {'is' if one else 'are'} asked for what {'it has' if one else 'they have'} learned"
        return f"{asked}; the mean becomes version {version + 1}"
    return f"{nodes} {'carries' if one else 'carry'} the job on from version {version}; none is made here meanwhile"


class JobSettingsRequest(BaseModel):
    """Settings of a job that are to have other values, by their keys in the job file."""

    values: dict[str, FiniteFloat] = Field(min_length=1, max_length=32, examples=[{"algorithm.lr": 0.05}])
    why: str = Field("", max_length=1000)


@router.patch("/jobs/{job}", responses=errors(409))
async def change_job_settings(
    job: str, body: JobSettingsRequest, _: Operator, registry: Registry, presenter: Presenter
) -> JobView:
    """Change settings from the next version on, or at once if no round is open.

    409: the job is not in mode server, its training is over, or it did not take the change. 422: a key cannot be
    changed, or a value is invalid.
    """
    runner = registry.runner(job)
    await runner.gate.wait_consistent()
    check(runner.hub, runner.spec, body.values)
    for effect in await runner.submit(ChangeSettings(body.values, body.why or ChangeSettings.why)):
        if isinstance(effect, JobEvent) and effect.kind == "warning":
            raise Refused(effect.text, code="job.unchanged", hint=f"look at it again: shoal jobs show {job}")
    return await described(registry, presenter, job)


def check(hub: Hub, spec: JobSpec, values: Mapping[str, float]) -> None:
    """Raise `InvalidJob` for settings that cannot change, or invalid values; `Refused` when they cannot change now."""
    allowed = changeable(hub.settings.algorithm, hub.settings.schedule)
    fixed = [key for key in values if key not in allowed]
    if fixed:
        raise InvalidJob(
            f"{', '.join(fixed)[:200]} cannot be changed while the job runs",
            code="job.fixed",
            hint=f"these can: {', '.join(allowed)}; for anything else: shoal jobs clone {spec.name} --set KEY=VALUE",
        )
    if hub.progress.mode != "server":
        raise Refused(
            f"job {spec.name} runs at its nodes with their present settings",
            code="job.gossip",
            hint=f"bring it back first: shoal switch {spec.name} server",
        )
    if hub.progress.phase not in ("waiting", "running"):
        raise Refused(f"the training of job {spec.name} is over", code="job.trained", hint="begin another with a clone")
    if ROUNDS in values and values[ROUNDS] <= hub.progress.version:
        raise InvalidJob(
            f"rounds is {values[ROUNDS]:g}, but there are {hub.progress.version} versions already",
            hint=f"shoal jobs stop {spec.name} ends the job",
        )
    parse_job(merged(spec, {**hub.settings.changed, **hub.settings.pending, **values}))


def merged(spec: JobSpec, values: Mapping[str, float]) -> dict[str, Any]:
    """Return the job file with these values."""
    made = spec.model_dump(mode="json")
    for key, value in values.items():
        table, _, field = key.rpartition(".")
        (made[table] if table else made)[field] = int(value) if value == value // 1 else value
    return made

"""A node whose credential is not known any more comes in by its own key: see `shoal_coordinator.readmission`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from shoal.core.errors import NotAllowed, ShoalError
from shoal.trust.envelope import Request as Signed
from shoal.trust.envelope import sha256
from shoal_coordinator import problems
from shoal_coordinator.access import Coord, label
from shoal_coordinator.certificates import check_certificate
from shoal_coordinator.peer_views import Readmission, Readmitted
from shoal_coordinator.problems import errors
from shoal_coordinator.routes.nodes import WRONG_TOKEN_S
from shoal_coordinator.service import Coordinator

router = APIRouter(tags=["node"], responses=errors(401, 404, 409))


@router.post("/jobs/{job}/readmission", response_model=Readmitted)
async def readmission(
    job: str,
    body: Readmission,
    request: Request,
    coordinator: Coord,
    term: Annotated[int, Query(ge=0, lt=2**63, description="the coordinator's, as the node knows it")],
) -> Response:
    """A credential that a peer of the job has made, under its own signature. The answer is signed by the coordinator.

    What is meant for another term of the coordinator is answered with the present one, and nothing else happens.
    """
    label(request, job, kind="enrol")
    coordinator.record(job)
    signed = coordinator.readmissions.read(job, request)
    try:
        answer = await _answered(
            request.scope, coordinator, job, signed, sha256(await request.body()), body.secret_sha256, term
        )
    except ShoalError as error:
        if isinstance(error, NotAllowed):
            await asyncio.sleep(WRONG_TOKEN_S)
        return await coordinator.readmissions.sign(signed, problems.of(error, request.url.path))
    if answer.name:
        label(request, job, node=answer.name, kind="enrol")
    found = Response(answer.model_dump_json(), media_type="application/json")
    return await coordinator.readmissions.sign(signed, found)


async def _answered(
    scope: Mapping[str, Any],
    coordinator: Coordinator,
    job: str,
    signed: Signed,
    digest: str,
    secret_sha256: str,
    term: int,
) -> Readmitted:
    driver = coordinator.driver(job)
    await driver.settled()
    claim = coordinator.readmissions.claim(signed)
    if term != driver.term:
        return Readmitted(name="", term=driver.term)
    node = coordinator.readmissions.admit(claim, digest)
    check_certificate(scope, coordinator.settings, node)
    await coordinator.admission.readmit(job, node, secret_sha256)
    return Readmitted(name=node, term=driver.term)

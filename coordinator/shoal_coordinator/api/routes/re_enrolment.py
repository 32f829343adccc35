"""A node whose credential is not known any more comes in by its own key: see `shoal_coordinator.nodes.reenrolment`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query, Request, Response

from shoal.core.errors import NotAllowed, ShoalError
from shoal.trust.envelope import sha256
from shoal_coordinator.api.dependencies import AppSettings, Reenrolments, Registrar, Registry
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.api.routes.nodes import WRONG_TOKEN_S
from shoal_coordinator.http import problems
from shoal_coordinator.http.client_certificates import check_certificate
from shoal_coordinator.http.problems import errors
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.schemas.peers import ReenrolmentRequest, ReenrolmentView

router = api_router(tags=["node"], responses=errors(401, 404, 409))


@router.post("/jobs/{job}/re-enrol", response_model=ReenrolmentView)
async def re_enrol_node(
    job: str,
    body: ReenrolmentRequest,
    request: Request,
    registry: Registry,
    node_registry: Registrar,
    settings: AppSettings,
    reenrolments: Reenrolments,
    term: Annotated[int, Query(ge=0, lt=2**63, description="the coordinator's, as the node knows it")],
) -> Response:
    """Exchange a credential that a peer has made and signed. The coordinator signs its response.

    A request for another term of the coordinator is answered with the present term, and has no effect.
    """
    label(request, job, kind="enrol")
    registry.job(job)
    signed = reenrolments.parse_head(job, request)
    try:
        runner = registry.runner(job)
        await runner.gate.wait_consistent()
        claim = reenrolments.verify_sender(signed)
        answer = ReenrolmentView(name="", term=runner.gate.term)
        if term == runner.gate.term:
            node = reenrolments.accept(claim, sha256(await request.body()))
            check_certificate(request.scope, settings, node)
            await node_registry.reenrol(job, node, body.secret_sha256)
            answer = ReenrolmentView(name=node, term=runner.gate.term)
    except ShoalError as error:
        if isinstance(error, NotAllowed):
            await asyncio.sleep(WRONG_TOKEN_S)
        return await reenrolments.sign(signed, problems.of(error, request.url.path))
    if answer.name:
        label(request, job, node=answer.name, kind="enrol")
    found = Response(answer.model_dump_json(), media_type="application/json")
    return await reenrolments.sign(signed, found)

"""Nodes as each other's peers: whom they may trust, and how they do."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import Header, Request, Response

from shoal.core.errors import Refused, StorageFailed
from shoal_coordinator.api.authentication import DashboardReader, Node
from shoal_coordinator.api.dependencies import ByteCounts, Checkpoints, Db, Documents, Registry, Services, Statuses
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http.problems import errors
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.schemas.peers import JobPeers, PeerStatusReport, SignedVersion, TrustDocumentsView
from shoal_coordinator.telemetry.traffic import Mark

router = api_router(responses=errors(401, 403, 404))


@router.get(
    "/jobs/{job}/trust",
    tags=["node"],
    response_model=TrustDocumentsView,
    responses={**errors(409, 426), 304: {"description": "No news"}},
)
async def show_trust_documents(
    job: str,
    request: Request,
    response: Response,
    node: Node,
    registry: Registry,
    database: Db,
    documents: Documents,
    if_none_match: Annotated[str, Header(description="the roster's version that is held, in quotes")] = "",
) -> TrustDocumentsView | Response:
    """Return the trust documents of a job that allows gossip."""
    label(request, job, node=node, kind="trust")
    found = await documents.up_to_date(registry.runner(job), database)
    version = found.roster.version
    if if_none_match == f'"{version}"':
        return Response(status_code=304, headers={"etag": if_none_match})
    response.headers["etag"] = f'"{version}"'
    return TrustDocumentsView(
        version=version,
        charter=found.charter_text.decode(),
        roster=found.roster_text.decode(),
        certificate=(await documents.certificate(registry.runner(job), node)).decode(),
    )


@router.get(
    "/jobs/{job}/manifest",
    tags=["node"],
    response_model=SignedVersion,
    responses={**errors(409, 426), 304: {"description": "No news"}},
)
async def show_manifest(
    job: str,
    request: Request,
    response: Response,
    node: Node,
    services: Services,
    checkpoints: Checkpoints,
    if_none_match: Annotated[str, Header(description="the version that is held, in quotes")] = "",
) -> SignedVersion | Response:
    """Return the signed manifest of the newest version, from which nodes can restore the job at another coordinator."""
    label(request, job, node=node, kind="trust")
    found = await checkpoints.newest(services.jobs.runner(job), services.trust_documents, services.database)
    version, text = found
    if if_none_match == f'"{version}"':
        return Response(status_code=304, headers={"etag": if_none_match})
    response.headers["etag"] = f'"{version}"'
    return SignedVersion(version=version, manifest=text.decode())


@router.post("/jobs/{job}/peer-status", tags=["node"], status_code=204, responses=errors(409, 426))
async def report_peer_status(
    job: str,
    body: PeerStatusReport,
    request: Request,
    node: Node,
    registry: Registry,
    byte_counts: ByteCounts,
    documents: Documents,
    statuses: Statuses,
) -> None:
    """Report the node's status as a peer. Idempotent; does not renew the node's lease."""
    runner = registry.runner(job)
    label(request, job, runner.hub.progress.version, node, "peering")
    if node not in documents.peers(job):
        raise Refused(
            f"{node} is not a peer in job {job}",
            code="peering.stranger",
            hint="join with a key, poll for the job, fetch its trust documents, then send the status again",
        )
    byte_counts.count_gossip(job, runner.hub.progress.version, node, Mark.of(body))
    for text in statuses.update(job, node, body):
        with suppress(StorageFailed):  # the status must not be lost because an event cannot be written
            await runner.feed.record_event("refusal", text, node)


@router.get("/jobs/{job}/peers", tags=["jobs"])
async def list_peers(
    job: str, _: DashboardReader, registry: Registry, documents: Documents, statuses: Statuses
) -> JobPeers:
    """Return the peers of a job: their last status, and how far their models agree."""
    registry.job(job)
    held = documents.current(job)
    version = held.roster.version if held is not None else None
    return statuses.view(job, documents.peers(job), version)

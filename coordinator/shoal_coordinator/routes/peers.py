"""Nodes as each other's peers: whom they may trust, and how they do."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from shoal.core.errors import Refused, StorageFailed
from shoal_coordinator.access import Coord, Node, Reader, label
from shoal_coordinator.peer_views import JobPeers, Papers, Peering, SignedVersion
from shoal_coordinator.problems import errors

router = APIRouter(responses=errors(401, 403, 404))


@router.get(
    "/jobs/{job}/papers",
    tags=["node"],
    response_model=Papers,
    responses={**errors(409, 426), 304: {"description": "No news"}},
)
async def papers(
    job: str,
    request: Request,
    response: Response,
    node: Node,
    coordinator: Coord,
    if_none_match: Annotated[str, Header(description="the roster's version that is held, in quotes")] = "",
) -> Papers | Response:
    """Charter and roster of a job that its nodes may carry on by themselves."""
    label(request, job, node=node, kind="papers")
    found = await coordinator.papers.of(coordinator.driver(job), coordinator.database)
    version = found.roster.version
    if if_none_match == f'"{version}"':
        return Response(status_code=304, headers={"etag": if_none_match})
    response.headers["etag"] = f'"{version}"'
    return Papers(
        version=version,
        charter=found.charter_text.decode(),
        roster=found.roster_text.decode(),
        certificate=(await coordinator.papers.certificate(coordinator.driver(job), node)).decode(),
    )


@router.get(
    "/jobs/{job}/manifest",
    tags=["node"],
    response_model=SignedVersion,
    responses={**errors(409, 426), 304: {"description": "No news"}},
)
async def manifest(
    job: str,
    request: Request,
    response: Response,
    node: Node,
    coordinator: Coord,
    if_none_match: Annotated[str, Header(description="the version that is held, in quotes")] = "",
) -> SignedVersion | Response:
    """The newest version, signed: for nodes to keep, so that the job can outlive the coordinator's disk."""
    label(request, job, node=node, kind="papers")
    found = await coordinator.manifests.newest(coordinator.driver(job), coordinator.papers, coordinator.database)
    version, text = found
    if if_none_match == f'"{version}"':
        return Response(status_code=304, headers={"etag": if_none_match})
    response.headers["etag"] = f'"{version}"'
    return SignedVersion(version=version, manifest=text.decode())


@router.post("/jobs/{job}/peering", tags=["node"], status_code=204, responses=errors(409, 426))
async def peering(job: str, body: Peering, request: Request, node: Node, coordinator: Coord) -> None:
    """How the node does as a peer; its sums of bytes are booked. No sign of life, and told again it changes nothing."""
    driver = coordinator.driver(job)
    label(request, job, driver.hub.version, node, "peering")
    if node not in coordinator.papers.peers(job):
        raise Refused(
            f"{node} is no peer in job {job}",
            code="peering.stranger",
            hint="say hello with a key, poll for the job, and fetch its papers; then tell again",
        )
    coordinator.ledger.book_gossip(job, driver.hub.version, node, body.mark())
    for text in coordinator.peers.tell(job, node, body):
        with suppress(StorageFailed):  # a note more or less: the next word must not be lost for it
            await driver.remark("refusal", text, node)


@router.get("/jobs/{job}/peers", tags=["jobs"])
async def peers(job: str, request: Request, _: Reader, coordinator: Coord) -> JobPeers:
    """A job's nodes as each other's peers: what each has told last, and how near their models are to each other."""
    label(request, kind="dashboard")
    coordinator.record(job)
    held = coordinator.papers.held(job)
    version = held.roster.version if held is not None else None
    return coordinator.peers.view(job, coordinator.papers.peers(job), version)

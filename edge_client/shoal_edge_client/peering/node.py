"""This node as a peer, over all its jobs: what the agent knows of peering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from shoal.core.errors import InvalidJob
from shoal.core.worker import Worker
from shoal.runtime.address import parse
from shoal.runtime.node_link import NodeLink
from shoal.runtime.pump import Ports
from shoal.runtime.store import CrashPoint, no_crash
from shoal.spec import parse_job
from shoal_edge_client.identity import State
from shoal_edge_client.peering.desk import Desk
from shoal_edge_client.peering.grant import Fence
from shoal_edge_client.peering.jury import Jury
from shoal_edge_client.peering.part import Part
from shoal_edge_client.peering.porch import Porch
from shoal_edge_client.peering.pump import PeerPump
from shoal_edge_client.peering.readmission import Readmission
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.transport import HttpTransport
from shoal_edge_client.workshop import Workshop
from shoal_peer.carriage import Allowance, Carrier


class Peering:
    """Made with the state folder locked. `links`: they ask for a credential again where theirs is not known any more,
    and the first passes on what other nodes say;
    `info`: what the coordinator is told of this machine. Raises `ShoalError` when nobody can listen there."""

    def __init__(
        self,
        settings: EdgeSettings,
        state: State,
        links: Sequence[NodeLink],
        open_link: Callable[[], NodeLink],
        info: Mapping[str, Any],
        at: CrashPoint = no_crash,
    ) -> None:
        self._state, self._at, self._bytes_per_hour = state, at, settings.peer_bytes_per_hour
        self.porch = Porch(settings.peer_listen, settings.peer_url, state.folder, parse(settings.url))
        self.porch.__enter__()
        asks = (self.porch.key, self.porch.next_boot, self._papers)

        def hello(link: NodeLink) -> None:
            link.hello(info, self.porch.contact())

        self.readmission = Readmission(state, *asks, links, open_link, hello)
        self.readmission.has_token = bool(settings.token.get_secret_value())
        self._fences: dict[str, Fence] = {}
        for link in links:
            link.unknown, link.hears = self.readmission.unknown, self._hear
        allowance = Allowance(settings.peer_relay_mib_per_min * 2**20)
        if not allowance.is_none:
            self.porch.carrier = Carrier(links[0], allowance)

    def close(self) -> None:
        """Listen no more."""
        self.porch.close()
        self.porch.__exit__()

    def _desk(self, job: str) -> Desk:
        return Desk(self._state.job_folder(job), job, self._at)

    def desk_for(self, job: str, found: Mapping[str, Any]) -> Desk | None:
        """What is kept of a job that its nodes may carry on; None for any other, and for one that cannot be run."""
        try:
            spec = parse_job(found["spec"])
        except (InvalidJob, KeyError):
            return None
        if not spec.gossip.allowed:
            return None
        try:
            spec.gossip.budget(self._bytes_per_hour)
        except InvalidJob as error:
            self.porch.log.error("not among the peers of this job", job=job, why=error.message, hint=error.hint)
            return None
        return self._desk(job)

    def pages(self) -> dict[str, dict[str, Any]]:
        """The jobs that can be taken up while the coordinator does not answer, and how their pages were; blocks."""
        found = {}
        for job in self._state.jobs():
            desk = self._desk(job)
            page = desk.page()
            if page is not None and desk.papers() is not None and desk.standing() is not None:
                found[job] = page
        return found

    def _papers(self) -> dict[str, dict[str, Any]]:
        """By job, what is kept of its papers; blocks."""
        found = {job: self._desk(job).papers() for job in self._state.jobs()}
        return {job: papers for job, papers in found.items() if papers is not None}

    def is_away(self, job: str) -> bool:
        """Whether an earlier process carried that job on when it ended; blocks."""
        stood = self._desk(job).standing()
        return stood is not None and stood.peer["gossip"] is not None

    def pump(
        self, found: Mapping[str, Any], worker: Worker, ports: Ports, hub: HttpTransport, workshop: Workshop
    ) -> PeerPump:
        """The pump of a job; blocks. `ports.keep` is its desk."""
        spec, desk = parse_job(found["spec"]), ports.keep
        assert isinstance(desk, Desk)
        desk.keep_page(found)
        part = Part(spec, worker, self.porch.next_boot(), desk, bytes_per_hour=self._bytes_per_hour)
        judge = workshop.judge(spec, ports.lane) if spec.gossip.loss_gate else None
        pump = PeerPump(part, ports, hub, self.porch, Jury(part, judge), partial(workshop.weigh, spec.seed))
        self._fences[spec.name] = pump.fence
        return pump

    def _hear(self, job: str, term: int, life: int) -> None:
        """An answer of the coordinator. Raises `Unreachable` for one that must not be heard. In any thread."""
        if (fence := self._fences.get(job)) is not None:
            fence.hear(term, life)

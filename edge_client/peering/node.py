"""This node as a peer, over all its jobs: what the agent knows of peering."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from edge_client.identity import State
from edge_client.peering.desk import Desk
from edge_client.peering.part import Part, weigh
from edge_client.peering.porch import Porch
from edge_client.peering.pump import Hub, PeerPump
from edge_client.settings import EdgeSettings
from shoal.core.errors import InvalidJob
from shoal.core.learner import Learner
from shoal.core.worker import Worker
from shoal.runtime.address import parse
from shoal.runtime.pump import Ports
from shoal.runtime.store import CrashPoint, no_crash
from shoal.spec import parse_job


class Peering:
    """Made with the state folder locked. Raises `ShoalError` when nobody can listen there."""

    def __init__(self, settings: EdgeSettings, state: State, at: CrashPoint = no_crash) -> None:
        self._state, self._at = state, at
        self.porch = Porch(settings.peer_listen, settings.peer_url, state.folder, parse(settings.url))
        self.porch.__enter__()

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
        return self._desk(job) if spec.gossip.allowed else None

    def pages(self) -> dict[str, dict[str, Any]]:
        """The jobs that can be taken up while the coordinator does not answer, and how their pages were; blocks."""
        found = {}
        for job in self._state.jobs():
            desk = self._desk(job)
            page = desk.page()
            if page is not None and desk.papers() is not None and desk.standing() is not None:
                found[job] = page
        return found

    def is_away(self, job: str) -> bool:
        """Whether an earlier process carried that job on when it ended; blocks."""
        stood = self._desk(job).standing()
        return stood is not None and stood.peer["gossip"] is not None

    def pump(self, found: Mapping[str, Any], worker: Worker, ports: Ports, hub: Hub, learner: Learner) -> PeerPump:
        """The pump of a job; blocks. `ports.keep` is its desk."""
        spec, desk = parse_job(found["spec"]), ports.keep
        assert isinstance(desk, Desk)
        desk.keep_page(found)
        part = Part(spec, worker, self.porch.next_boot(), desk)
        return PeerPump(part, ports, hub, self.porch, partial(weigh, learner, spec.seed))

"""This node as a peer, over all its jobs: what the agent knows of peering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from shoal.core.client.worker import Worker
from shoal.core.errors import InvalidJob
from shoal.jobs.spec import parse_job
from shoal.peering.http.relay_server import RelayAllowance, RelayUplink
from shoal.runtime.durable_files import CrashPoint, no_crash
from shoal.runtime.http.coordinator_url import parse
from shoal.runtime.http.node_client import NodeClient
from shoal.runtime.worker_ports import WorkerPorts
from shoal_edge_client.identity import StateFolder
from shoal_edge_client.peering.edge_listener import EdgeListener
from shoal_edge_client.peering.failover_pump import FailoverPump
from shoal_edge_client.peering.node_state import NodeState
from shoal_edge_client.peering.peer_session import PeerSession
from shoal_edge_client.peering.recovery.incarnation_fence import IncarnationFence
from shoal_edge_client.peering.recovery.reenrolment_client import ReenrolmentClient
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.training.trainer_backend import TrainerBackend
from shoal_edge_client.transport import HttpTransport


class EdgePeering:
    """The peering of this node over all its jobs, made with the state folder locked. `clients` ask for a new credential
    when theirs is unknown; the first relays other nodes' requests. `info`: this machine's description. Raises
    `ShoalError` if the address is taken."""

    def __init__(
        self,
        settings: EdgeSettings,
        state: StateFolder,
        clients: Sequence[NodeClient],
        open_client: Callable[[], NodeClient],
        info: Mapping[str, Any],
        at: CrashPoint = no_crash,
    ) -> None:
        self._folder, self._at, self._bytes_per_hour = state, at, settings.peer_bytes_per_hour
        self.listener = EdgeListener(settings.peer_listen, settings.peer_url, state.folder, parse(settings.url))
        self.listener.__enter__()
        asks = (self.listener.key, self.listener.next_process, self._documents)

        def hello(client: NodeClient) -> None:
            client.hello(info, self.listener.contact())

        self.reenrolment = ReenrolmentClient(state, *asks, clients, open_client, hello)
        self.reenrolment.has_token = bool(settings.token.get_secret_value())
        self._fences: dict[str, IncarnationFence] = {}
        for client in clients:
            client.link.on_unknown_credential = self.reenrolment.on_unknown_credential
            client.link.on_term = self._check_term
        allowance = RelayAllowance(settings.peer_relay_mib_per_min_max * 2**20)
        if not allowance.is_none:
            self.listener.uplink = RelayUplink(clients[0].link, allowance)

    def close(self) -> None:
        """Stop listening."""
        self.listener.close()
        self.listener.__exit__()

    def _state_of(self, job: str) -> NodeState:
        return NodeState(self._folder.job_folder(job), job, self._at)

    def state_for(self, job: str, found: Mapping[str, Any]) -> NodeState | None:
        """Return the state of a job that its nodes may continue; None for other jobs and for one that cannot be run."""
        try:
            spec = parse_job(found["spec"])
        except (InvalidJob, KeyError):
            return None
        if not spec.gossip.allowed:
            return None
        try:
            spec.gossip.budget(self._bytes_per_hour)
        except InvalidJob as error:
            self.listener.log.error("not among the peers of this job", job=job, why=error.message, hint=error.hint)
            return None
        return self._state_of(job)

    def resumable_jobs(self) -> dict[str, dict[str, Any]]:
        """Return the descriptions of the jobs that can resume while the coordinator does not answer; blocks."""
        found = {}
        for job in self._folder.jobs():
            state = self._state_of(job)
            job_info = state.files.job_info()
            if job_info is not None and state.files.documents() is not None and state.load_peer() is not None:
                found[job] = job_info
        return found

    def _documents(self) -> dict[str, dict[str, Any]]:
        """Return the saved trust documents by job; blocks."""
        found = {job: self._state_of(job).files.documents() for job in self._folder.jobs()}
        return {job: documents for job, documents in found.items() if documents is not None}

    def was_gossiping(self, job: str) -> bool:
        """Return whether an earlier process ended while the job was in mode gossip; blocks."""
        saved = self._state_of(job).load_peer()
        return saved is not None and saved.peer["gossip"] is not None

    def create_pump(
        self, found: Mapping[str, Any], worker: Worker, ports: WorkerPorts, hub: HttpTransport, trainer: TrainerBackend
    ) -> FailoverPump:
        """Return the pump of a job; blocks. `ports.state` is its `NodeState`."""
        spec, state = parse_job(found["spec"]), ports.state
        assert isinstance(state, NodeState)
        state.files.save_job_info(found)
        session = PeerSession(spec, worker, self.listener.next_process(), state, bytes_per_hour=self._bytes_per_hour)
        evaluate = trainer.evaluator(spec, ports.executor) if spec.gossip.loss_ratio_max else None
        pump = FailoverPump(session, ports, hub, self.listener, evaluate, partial(trainer.count_examples, spec.seed))
        self._fences[spec.name] = pump.fence
        return pump

    def _check_term(self, job: str, term: int, incarnation: int) -> None:
        """Check an answer of the coordinator. Raises `Unreachable` for a fenced one. Any thread may call."""
        if (fence := self._fences.get(job)) is not None:
            fence.check(term, incarnation)

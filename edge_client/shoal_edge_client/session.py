"""A node's session with its coordinator: its connections, its credential, and how it describes itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from shoal.core.errors import NotAllowed, ShoalError, Unreachable
from shoal.runtime.http.node_client import NodeClient, NodeWelcome
from shoal.runtime.http.retry import Backoff, call_with_retries
from shoal.runtime.threads import in_thread
from shoal.runtime.training.cards import LearnerDevices
from shoal_edge_client.identity import Identity, StateFolder
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.telemetry.node_info import collect_node_info
from shoal_edge_client.training.base_models import BaseModels
from shoal_edge_client.training.trainer_backend import TrainerBackend

if TYPE_CHECKING:
    from shoal_edge_client.peering.edge_peering import EdgePeering

DEFAULT_WELCOME = NodeWelcome("", lease_s=15.0, heartbeat_s=2.0, wait_s_max=25.0)
"""The welcome assumed of a coordinator that does not answer."""
UNKNOWN_CREDENTIAL = "auth.unknown"
"""The coordinator knows no node that could have been enrolled again by its key: its disk may be lost."""


class CoordinatorSession:
    """The session of one node. `polls`: the client for polls, which are aborted alone."""

    backend: TrainerBackend | None = None
    """Trains; known once it is open. Describes device and model."""
    bases: BaseModels | None = None
    """Fetches base models for the learner; known once that is loaded."""
    peering: EdgePeering | None = None
    """Set where the node listens for peers."""

    def __init__(self, settings: EdgeSettings, state: StateFolder) -> None:
        self.settings, self.state = settings, state
        self.backoff = Backoff(most_s=settings.retry_pause_max_s, give_up_s=settings.coordinator_timeout_s)
        self.client, self.polls = self.open_client(), self.open_client()
        self.log: Any = structlog.get_logger("edge_client")

    def open_client(self) -> NodeClient:
        """Return a new client, without a credential."""
        return NodeClient(self.settings.url, **self.settings.trust)

    @property
    def credential(self) -> str:
        """Return the credential in use; empty before the node is enrolled."""
        return self.client.link.credential

    def node_info(self) -> dict[str, Any]:
        """Return the description of this machine and model."""
        settings, backend = self.settings, self.backend
        compute = backend.compute if backend is not None else LearnerDevices()
        model = backend.model_form.get("model") if backend is not None else None
        return collect_node_info(
            compute.device or settings.device, settings.tags, settings.hours, model, compute.describe()
        )

    async def connect(self) -> tuple[NodeWelcome, dict[str, dict[str, Any]]]:
        """Enrol or say hello. Return the welcome, and the descriptions of the jobs to resume without the coordinator:
        none if it answered. Raises `ShoalError` if it does not answer and no job can go on without it."""
        known, token = self.state.identity(), self.settings.token.get_secret_value()
        if known is None:
            return await self.hello(await self._enrol(token), self.backoff), {}
        resumable: dict[str, dict[str, Any]] = {}
        if self.peering is not None:
            resumable = await in_thread(self.peering.resumable_jobs)
        try:
            return await self.hello(known, None if resumable else self.backoff), {}
        except Unreachable as error:
            failure: ShoalError = error
        except NotAllowed as error:
            if not token:
                raise
            self.log.warning("the old credential is not valid any more: enrolling again with the token")
            try:
                return await self.hello(await self._enrol(token), self.backoff), {}
            except NotAllowed:  # the token is used; but a coordinator that is being restored will know the node again
                if error.code != UNKNOWN_CREDENTIAL:
                    raise
                failure = error
        if not resumable:
            raise failure
        self.log.warning("the coordinator does not answer: continuing with the saved state", why=failure.message)
        return replace(DEFAULT_WELCOME, name=known.name), resumable

    async def hello(self, known: Identity, backoff: Backoff | None) -> NodeWelcome:
        """Say hello with a credential; without a `backoff` once."""
        self.client.link.credential = self.polls.link.credential = known.credential
        contact = self.peering.listener.contact() if self.peering is not None else None
        layout = self.backend.model_form.get("layout") if self.backend is not None else None
        call = partial(self.client.hello, self.node_info(), contact, layout)
        welcome = await in_thread(call) if backoff is None else await call_with_retries(backoff, call)
        if self.client.link.warning:
            self.log.warning(self.client.link.warning)
        return welcome

    async def _enrol(self, token: str) -> Identity:
        if not token:
            raise NotAllowed(
                f"this node is not known at {self.settings.url} yet",
                code="auth.missing",
                hint="an operator makes a token with `shoal token create`; give it with --token",
            )
        limits_s = filter(None, (self.settings.enrol_timeout_s, self.settings.coordinator_timeout_s))
        self.client.link.credential, limit_s = "", min(limits_s, default=0.0)
        call = partial(self._enrol_once, token, self.state.enrolment_key(token))
        credential, name = await call_with_retries(replace(self.backoff, give_up_s=limit_s), call)
        self.state.save_identity(identity := Identity(self.state.url, name, credential))
        self.log.info("enrolled", node=name)
        return identity

    def _enrol_once(self, token: str, key: str) -> tuple[str, str]:
        """Enrol; blocks. Raises `ShoalError`; `Unreachable` says that this node is not enrolled yet."""
        try:
            return self.client.enrol(token, self.settings.node, self.node_info(), key)
        except Unreachable as error:
            error.message = f"not enrolled yet: {error.message}"
            error.args = (error.message,)  # the log of the retries shows these
            raise

    def close(self) -> None:
        """Release the connections, the listener and the training process."""
        for client in (self.polls, self.client):
            client.abort()
            client.close()
        if self.peering is not None:
            self.peering.close()
        if self.backend is not None:
            self.backend.close()

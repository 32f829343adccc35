"""`shoal join --prepare`: be ready to enter jobs among their peers, without taking part yet.

The node enrols, shows its key, and is given, for each job that its nodes may carry on, the charter and roster, its own
join certificate and the newest version as the coordinator signed it. Started when the coordinator is dead, it shows the
certificate to the peers (`peer.entry`), is let in, and learns with them from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import structlog

from shoal.core.errors import InvalidJob, NotAllowed
from shoal.core.protocol.message import BlobRef, ref_state
from shoal.jobs.spec import parse_job
from shoal.peering.http.peer_link import content_length
from shoal.runtime.http.coordinator_url import parse
from shoal.runtime.http.node_client import NodeClient
from shoal.runtime.http.retry import Backoff, attempts
from shoal.trust.documents import Manifest, verify_document
from shoal_edge_client.identity import Identity, StateFolder
from shoal_edge_client.peering.edge_peer_group import EdgePeerGroup
from shoal_edge_client.peering.edge_peering import EdgePeering
from shoal_edge_client.peering.node_state import NodeState
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.telemetry.node_info import collect_node_info

MANIFEST_S = 30.0
"""Time in seconds to try to fetch the newest version's manifest."""


@dataclass(frozen=True)
class PreparedJob:
    """A job that this node can enter. `expires_at`: when its certificate expires, in seconds since 1970."""

    job: str
    version: int
    roster: int
    expires_at: int


def prepare(settings: EdgeSettings) -> list[PreparedJob]:
    """Fetch the documents and models of the named jobs, or of all; blocks. Raises `ShoalError`."""
    if not settings.peer_listen:
        hint = "set --peer-listen to the HOST:PORT at which other nodes call this one, or to none"
        raise InvalidJob("only a peer can join other peers", code="usage.invalid", hint=hint)
    state = StateFolder(settings.folder, parse(settings.url))
    client = NodeClient(settings.url, **settings.trust)
    with state:
        peering = EdgePeering(settings, state, (client,), lambda: client, collect_node_info(settings.device))
        try:
            return _Preparation(settings, state, client, peering).all()
        finally:
            peering.close()
            client.close()


class _Preparation:
    def __init__(self, settings: EdgeSettings, state: StateFolder, client: NodeClient, peering: EdgePeering) -> None:
        self._settings, self._state, self._client, self._peering = settings, state, client, peering
        self.log: Any = structlog.get_logger("edge_client")

    def all(self) -> list[PreparedJob]:
        identity = self._state.identity() or self._enrolled()
        self._client.link.credential = identity.credential
        self._client.hello(self._info(), self._peering.listener.contact())
        names = self._settings.jobs or [str(job["name"]) for job in self._listed()]
        return [ready for name in names if (ready := self._one(name, identity.name)) is not None]

    def _info(self) -> dict[str, Any]:
        return collect_node_info(self._settings.device, self._settings.tags, self._settings.hours)

    def _enrolled(self) -> Identity:
        token = self._settings.token.get_secret_value()
        if not token:
            hint = "an operator makes a token with `shoal token create`; give it with --token"
            raise NotAllowed(f"this node is not known at {self._settings.url} yet", code="auth.missing", hint=hint)
        key = self._state.enrolment_key(token)
        credential, name = self._client.enrol(token, self._settings.node, self._info(), key)
        identity = Identity(self._state.url, name, credential)
        self._state.save_identity(identity)
        return identity

    def _listed(self) -> list[dict[str, Any]]:
        found = self._client.link.json("GET", "/api/v1/jobs", own=True)
        return [job for job in found.get("jobs", []) if job.get("ended_at") is None]

    def _one(self, name: str, node: str) -> PreparedJob | None:
        job_info = self._client.job(name)
        state = self._peering.state_for(name, job_info)
        if state is None:
            self.log.info("its nodes do not carry this job on by themselves", job=name)
            return None
        state.bind_to_job(str(job_info["created_at"]))
        spec = parse_job(job_info["spec"])
        group = EdgePeerGroup(spec, node, 0, state, self._peering.listener, None)
        sealed = self._client.trust_documents(name)
        assert sealed is not None
        group.documents = documents = group.verify_and_save(sealed)
        state.files.save_job_info(job_info)
        manifest = verify_document(self._signed(name), Manifest, documents.charter)
        model = self._model(state, manifest)
        if state.load_peer() is None:
            term = manifest.term  # the coordinator itself has signed it
            held = {"state": "coordinated", "term": term, "heard": term, "version": manifest.version}
            state.save_peer({**held, "model": ref_state(model), "gossip": None}, None)
        return PreparedJob(name, manifest.version, documents.roster.version, group.expires_at)

    def _signed(self, name: str) -> bytes:
        """Return the signed manifest of the newest version; retry while a version that has just closed is unsigned."""
        for attempt in attempts(Backoff(give_up_s=MANIFEST_S)):
            with attempt:
                signed = self._client.manifest(name)
                assert signed is not None
                return signed
        raise AssertionError("tries() ends with the last error")

    def _model(self, state: NodeState, manifest: Manifest) -> BlobRef:
        """Return the model of a version; fetch it unless it is stored."""
        path = f"/api/v1/jobs/{quote(manifest.job)}/models/{manifest.version}"
        with self._client.link.exchange("GET", path, own=True) as answer:
            ref = BlobRef(manifest.model_sha256, content_length(answer.headers))
            if state.blobs.size(ref.digest) == ref.nbytes:
                return ref
            with state.blobs.partials.incoming("prepare", ref) as incoming:
                for piece in answer.pieces():
                    incoming.write(piece)
                incoming.finish()
        return ref

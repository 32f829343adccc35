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
from shoal.core.message import Ref, ref_state
from shoal.runtime.address import parse
from shoal.runtime.backoff import Backoff, tries
from shoal.runtime.node_link import NodeLink
from shoal.spec import parse_job
from shoal.trust.papers import Manifest, unseal
from shoal_edge_client.identity import Identity, State
from shoal_edge_client.info import info
from shoal_edge_client.peering.circle import Circle
from shoal_edge_client.peering.desk import Desk
from shoal_edge_client.peering.node import Peering
from shoal_edge_client.settings import EdgeSettings
from shoal_peer.link import length_of

MANIFEST_S = 30.0
"""How long to ask for the newest version's manifest."""


@dataclass(frozen=True)
class Ready:
    """A job that this node can enter. `until`: seconds since 1970 when its certificate runs out."""

    job: str
    version: int
    roster: int
    until: int


def prepare(settings: EdgeSettings) -> list[Ready]:
    """Fetch what is needed for the named jobs, or all; blocks. Raises `ShoalError`."""
    if not settings.peer_listen:
        hint = "say --peer-listen HOST:PORT, where the other nodes will call this one, or none"
        raise InvalidJob("only who is a peer can enter among peers", code="usage.invalid", hint=hint)
    state = State(settings.folder, parse(settings.url))
    link = NodeLink(settings.url, **settings.trust)
    with state:
        peering = Peering(settings, state, (link,), lambda: link, info(settings.device))
        try:
            return _Preparing(settings, state, link, peering).all()
        finally:
            peering.close()
            link.close()


class _Preparing:
    def __init__(self, settings: EdgeSettings, state: State, link: NodeLink, peering: Peering) -> None:
        self._settings, self._state, self._link, self._peering = settings, state, link, peering
        self.log: Any = structlog.get_logger("edge_client")

    def all(self) -> list[Ready]:
        identity = self._state.identity() or self._enrolled()
        self._link.credential = identity.credential
        self._link.hello(self._info(), self._peering.porch.contact())
        names = self._settings.jobs or [str(job["name"]) for job in self._listed()]
        return [ready for name in names if (ready := self._one(name, identity.name)) is not None]

    def _info(self) -> dict[str, Any]:
        return info(self._settings.device, self._settings.tags, self._settings.hours)

    def _enrolled(self) -> Identity:
        token = self._settings.token.get_secret_value()
        if not token:
            hint = "an operator makes a token with `shoal token create`; give it with --token"
            raise NotAllowed(f"this node is not known at {self._settings.url} yet", code="auth.missing", hint=hint)
        key = self._state.enrolment_key(token)
        credential, name = self._link.enrol(token, self._settings.node, self._info(), key)
        identity = Identity(self._state.url, name, credential)
        self._state.keep(identity)
        return identity

    def _listed(self) -> list[dict[str, Any]]:
        found = self._link.json("GET", "/api/v1/jobs", own=True)
        return [job for job in found.get("jobs", []) if job.get("ended_at") is None]

    def _one(self, name: str, node: str) -> Ready | None:
        page = self._link.job(name)
        desk = self._peering.desk_for(name, page)
        if desk is None:
            self.log.info("its nodes do not carry this job on by themselves", job=name)
            return None
        desk.belongs_to(str(page["created_at"]))
        spec = parse_job(page["spec"])
        circle = Circle(spec, node, 0, desk, self._peering.porch, None)
        sealed = self._link.papers(name)
        assert sealed is not None
        circle.papers = papers = circle.offered(sealed)
        desk.keep_page(page)
        manifest = unseal(self._signed(name), Manifest, papers.charter)
        model = self._model(desk, manifest)
        if desk.standing() is None:
            term = manifest.term  # the coordinator itself has signed it
            held = {"state": "coordinated", "term": term, "heard": term, "version": manifest.version}
            desk.keep({**held, "model": ref_state(model), "gossip": None}, None)
        return Ready(name, manifest.version, papers.roster.version, circle.until)

    def _signed(self, name: str) -> bytes:
        """What the coordinator has signed of the newest version; a version that has just closed is not signed yet."""
        for attempt in tries(Backoff(give_up_s=MANIFEST_S)):
            with attempt:
                signed = self._link.manifest(name)
                assert signed is not None
                return signed
        raise AssertionError("tries() ends with the last error")

    def _model(self, desk: Desk, manifest: Manifest) -> Ref:
        """The model of a version, which is fetched unless it is here."""
        path = f"/api/v1/jobs/{quote(manifest.job)}/models/{manifest.version}"
        with self._link.exchange("GET", path, own=True) as answer:
            ref = Ref(manifest.model_sha256, length_of(answer.headers))
            if desk.bodies.size(ref.digest) == ref.nbytes:
                return ref
            with desk.bodies.incoming("prepare", ref) as incoming:
                for piece in answer.pieces():
                    incoming.write(piece)
                incoming.finish()
        return ref

"""Distribution of rosters among standalone peers. The peer with the operator's key signs them, the others fetch them.

    GET  /p2p/{job}/roster?newer=N    the roster, to a member's signed request; nothing if its version is not above N
    POST /p2p/{job}/join              a new peer with an invitation; the answer is all trust documents

A roster is signed, and a newer one replaces an older one, so its sender does not matter. Each peer asks a few
others periodically, and at once (but at most every `PAUSE_S`) when it meets a peer that its roster does not name.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import structlog

from shoal.core.errors import Refused, ShoalError
from shoal.peering.http.peer_link import PeerLink, wall_s
from shoal.peering.roster.invitation import read_joining
from shoal.peering.roster.roster_admission import RosterAdmission
from shoal.peering.state.peer_state import PeerDocuments
from shoal.runtime.threads import in_thread
from shoal.trust.codes import refusal
from shoal.trust.documents import Roster, verify_document
from shoal.trust.envelope import SignedRequest, check_digest, check_request, sha256
from shoal.trust.keys import peer_id_of
from shoal.trust.request_verifier import RequestVerifier
from shoal.validation import strict_json

EVERY_S, PAUSE_S = 10.0, 1.0
ASKED = 3
"""Others that are asked at a time."""


class RosterHolder(Protocol):
    """The peer group whose roster is synchronized."""

    documents: PeerDocuments
    verifier: RequestVerifier
    verifier_lock: threading.Lock

    def live_links(self) -> Sequence[PeerLink]: ...

    def update_documents(self, documents: PeerDocuments) -> None:
        """Use a newer roster."""
        ...


class RosterSync:
    """The roster synchronization of one peer. `admission`: set if this peer has the operator's key.

    `save` stores a roster durably for the next process; it blocks and raises `StorageFailed`. `on_removed` is called
    if a newer roster does not name this peer.
    """

    def __init__(
        self,
        member: RosterHolder,
        save: Callable[[bytes], None],
        on_removed: Callable[[], None],
        admission: RosterAdmission | None = None,
    ) -> None:
        self._member, self._save, self._on_removed, self._admission = member, save, on_removed, admission
        self._stranger_met = asyncio.Event()
        self._turn = asyncio.Lock()
        self._random = random.Random()
        self.log: Any = structlog.get_logger("peer.rosters")

    def notify_stranger(self) -> None:
        """Ask for newer rosters soon: a request came from a peer that the roster does not name."""
        self._stranger_met.set()

    async def run(self) -> None:
        """Ask for newer rosters, until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_S)
            try:
                await asyncio.wait_for(self._stranger_met.wait(), EVERY_S)
            except TimeoutError:
                self.log.debug("periodic request for rosters")
            self._stranger_met.clear()
            try:
                await self._ask_peers()
            except ShoalError as error:
                self.log.warning("no newer roster", code=error.code, why=error.message, hint=error.hint)

    async def _ask_peers(self) -> None:
        if self._admission is not None:  # `shoal peer init` may have signed one there
            _, sealed = await in_thread(self._admission.roster)
            await self.apply(sealed)
        links = self._member.live_links()
        await asyncio.gather(*map(self._ask, self._random.sample(links, min(ASKED, len(links)))))

    async def _ask(self, link: PeerLink) -> None:
        documents = self._member.documents
        path, query = f"/p2p/{documents.spec.name}/roster", f"newer={documents.roster.version}"
        try:
            sealed = await in_thread(partial(link.request, "GET", path, query, b"", Roster.BYTES_MAX))
            if sealed:
                await self.apply(sealed)
        except ShoalError as error:
            self.log.info("no roster", code=error.code, why=error.message, peer=link.peer.node)

    async def apply(self, sealed: bytes) -> bool:
        """Use a roster if it is newer; return whether it is. Raises what `RequestVerifier.update_roster` raises."""
        async with self._turn:
            return await self._apply(sealed)

    async def _apply(self, sealed: bytes) -> bool:
        member = self._member
        roster = verify_document(sealed, Roster, member.documents.charter)
        if roster.version <= member.documents.roster.version:
            return False
        me = next((peer for peer in roster.peers if peer.peer_id == member.documents.key.peer_id), None)
        if me is None:
            self._on_removed()
            return False
        await in_thread(partial(self._save, sealed))
        before = member.documents.roster_names
        member.update_documents(replace(member.documents, roster=roster, sealed_roster=sealed, me=me))
        come = sorted(member.documents.roster_names - before)
        self.log.info("a newer roster", version=roster.version, newcomers=come)
        return True

    def newer_than(self, than: int) -> bytes:
        """Return the roster if its version is greater; else nothing."""
        documents = self._member.documents
        return documents.sealed_roster if documents.roster.version > than else b""

    async def join(self, request: SignedRequest, text: bytes) -> bytes:
        """Admit a new peer with an invitation that has signed the request with its key.

        Raises `Refused`, `NotAllowed`, `InvalidPayload`; a refusal changes nothing.
        """
        if self._admission is None:
            hint = "use the address of the peer that was started with `shoal peer start`, and see that it runs"
            raise Refused(
                "this peer has no operator's key, so it cannot admit newcomers", code="peer.admits-nobody", hint=hint
            )
        joining, member, charter = read_joining(text), self._member, self._member.documents.charter
        if peer_id_of(joining.public_key) != request.sender:
            raise refusal(
                "trust.stranger", f"the key is that of {peer_id_of(joining.public_key)}; {request.sender} shows it"
            )
        if request.to != member.verifier.peer_id:
            raise refusal("trust.addressee", f"for {request.to}; this is {member.verifier.peer_id}")
        if request.job != charter.job:
            raise refusal("trust.job", f"about job {request.job}; this is {charter.job}")
        check_request(request, joining.public_key, charter)
        check_digest(request.digest, sha256(text))
        async with self._turn:
            self._check_first_time(request)
            sealed = await in_thread(partial(self._admission.admit, joining, wall_s()))
            await self._apply(sealed)
            with member.verifier_lock:
                member.verifier.admit(member.verifier.examine(request, wall_s()), request.digest, wall_s())
        return await in_thread(partial(self._admission.bundle, sealed))

    def _check_first_time(self, request: SignedRequest) -> None:
        """Refuse a member's repeated request, so that an old one cannot move its address back."""
        member = self._member
        if any(peer.peer_id == request.sender for peer in member.documents.roster.peers):
            with member.verifier_lock:
                member.verifier.examine(request, wall_s())


def read_bundle(data: bytes) -> Mapping[str, bytes]:
    """Return the documents of an answer by their file names; not verified. Raises `Refused`."""
    try:
        values: Any = strict_json.loads(data)
        return {
            "job.toml": values["job"].encode("utf-8"),
            "charter.json": values["charter"].encode("ascii"),
            "roster.json": values["roster"].encode("ascii"),
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "install the same release of shoal on both sides"
        raise Refused(f"no documents: {str(error)[:100]}", code="peer.documents", hint=hint) from None

"""How newer rosters reach a standalone peer: each asks others for them, and the one with the operator's key makes them.

    GET  /p2p/{job}/roster?newer=N    the roster, to a member's signed request; nothing if its version is not above N
    POST /p2p/{job}/join              a newcomer with an invitation; the answer is all that it needs (`peer.admission`)

A roster is signed, and a newer one replaces an older one, so it does not matter from whom it comes. Each peer asks a
few others now and then, and at once (but at most every `PAUSE_S`) when somebody comes whom its own does not name.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import structlog

from shoal import strict_json
from shoal.core.errors import Refused, ShoalError
from shoal.runtime.threads import in_thread
from shoal.trust.codes import refusal
from shoal.trust.envelope import Request, check_digest, check_request, sha256
from shoal.trust.gatekeeper import Gatekeeper
from shoal.trust.keys import peer_id_of
from shoal.trust.papers import Roster, unseal
from shoal_peer.admission import Admission
from shoal_peer.folder import Papers
from shoal_peer.invitation import read_joining
from shoal_peer.link import PeerLink, wall_s

EVERY_S, PAUSE_S = 10.0, 1.0
ASKED = 3
"""Others that are asked at a time."""


class Member(Protocol):
    """A peer of a job, as its rosters need it."""

    papers: Papers
    gate: Gatekeeper
    gate_lock: threading.Lock
    links: dict[str, PeerLink]

    def live(self) -> Sequence[str]:
        """Return the other peers that are there."""
        ...

    def take_papers(self, papers: Papers) -> None:
        """Go by a newer roster."""
        ...

    def removed(self) -> None:
        """Act on a roster that does not name this peer any more."""
        ...

    def keep_roster(self, sealed: bytes) -> None:
        """Write a roster down, durably, for the next process. Blocks; raises `StorageFailed`."""
        ...


class Rosters:
    """The rosters of one peer. Used in the event loop. `admission`: where this peer has the operator's key."""

    def __init__(self, member: Member, admission: Admission | None = None) -> None:
        self._member, self._admission = member, admission
        self._knocked = asyncio.Event()
        self._turn = asyncio.Lock()
        self._random = random.Random()
        self.log: Any = structlog.get_logger("peer.rosters")

    def knocked(self) -> None:
        """Somebody came whom the roster does not name: others may have a newer one."""
        self._knocked.set()

    async def run(self) -> None:
        """Ask for newer rosters, until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_S)
            try:
                await asyncio.wait_for(self._knocked.wait(), EVERY_S)
            except TimeoutError:
                self.log.debug("nobody has knocked; rosters are asked for anyway")
            self._knocked.clear()
            try:
                await self._ask_some()
            except ShoalError as error:
                self.log.warning("no newer roster", code=error.code, why=error.message, hint=error.hint)

    async def _ask_some(self) -> None:
        if self._admission is not None:  # `shoal peer new` may have signed one there
            _, sealed = await in_thread(self._admission.roster)
            await self.take(sealed)
        there = [node for node in self._member.live() if node in self._member.links]
        links = [self._member.links[node] for node in self._random.sample(there, min(ASKED, len(there)))]
        await asyncio.gather(*map(self._ask, links))

    async def _ask(self, link: PeerLink) -> None:
        papers = self._member.papers
        path, query = f"/p2p/{papers.spec.name}/roster", f"newer={papers.roster.version}"
        try:
            sealed = await in_thread(partial(link.ask, "GET", path, query, b"", Roster.BYTES_MAX))
            if sealed:
                await self.take(sealed)
        except ShoalError as error:
            self.log.info("no roster", code=error.code, why=error.message, peer=link.peer.node)

    async def take(self, sealed: bytes) -> bool:
        """Go by a roster, if it is newer; whether it is. Raises what `Gatekeeper.take_roster` raises."""
        async with self._turn:
            return await self._take(sealed)

    async def _take(self, sealed: bytes) -> bool:
        member = self._member
        roster = unseal(sealed, Roster, member.papers.charter)
        if roster.version <= member.papers.roster.version:
            return False
        me = next((peer for peer in roster.peers if peer.peer_id == member.papers.key.peer_id), None)
        if me is None:
            member.removed()
            return False
        await in_thread(partial(member.keep_roster, sealed))
        with member.gate_lock:
            member.gate.take_roster(sealed)
        before = member.papers.roster_names
        member.take_papers(replace(member.papers, roster=roster, sealed_roster=sealed, me=me))
        come = sorted(member.papers.roster_names - before)
        self.log.info("a newer roster", version=roster.version, newcomers=come)
        return True

    def newer(self, than: int) -> bytes:
        """Return the roster that is held, if its version is greater; else nothing."""
        papers = self._member.papers
        return papers.sealed_roster if papers.roster.version > than else b""

    async def join(self, request: Request, text: bytes) -> bytes:
        """Let a newcomer in that shows an invitation, and proves its own key by signing the request.

        Raises `Refused`, `NotAllowed`, `InvalidPayload`; what is refused changes nothing.
        """
        if self._admission is None:
            hint = "use the address of the peer that was begun with `shoal peer start`, and see that it runs"
            raise Refused("this peer has no operator's key, it admits nobody", code="peer.admits-nobody", hint=hint)
        joining, member, charter = read_joining(text), self._member, self._member.papers.charter
        if peer_id_of(joining.pub) != request.sender:
            raise refusal("trust.stranger", f"the key is that of {peer_id_of(joining.pub)}; {request.sender} shows it")
        if request.to != member.gate.peer_id:
            raise refusal("trust.addressee", f"for {request.to}; this is {member.gate.peer_id}")
        if request.job != charter.job:
            raise refusal("trust.job", f"about job {request.job}; this is {charter.job}")
        check_request(request, joining.pub, charter)
        check_digest(request.digest, sha256(text))
        async with self._turn:
            self._check_first_time(request)
            sealed = await in_thread(partial(self._admission.admit, joining, wall_s()))
            await self._take(sealed)
            with member.gate_lock:
                member.gate.admit(member.gate.examine(request, wall_s()), request.digest, wall_s())
        return await in_thread(partial(self._admission.bundle, sealed))

    def _check_first_time(self, request: Request) -> None:
        """A member's request is taken once: an old one must not move its address back."""
        member = self._member
        if any(peer.peer_id == request.sender for peer in member.papers.roster.peers):
            with member.gate_lock:
                member.gate.examine(request, wall_s())


def read_bundle(data: bytes) -> Mapping[str, bytes]:
    """Return the papers of an answer by the names of their files; not verified. Raises `Refused`."""
    try:
        values: Any = strict_json.loads(data)
        return {
            "job.toml": values["job"].encode("utf-8"),
            "charter.json": values["charter"].encode("ascii"),
            "roster.json": values["roster"].encode("ascii"),
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "install the same release of shoal on both sides"
        raise Refused(f"no papers: {str(error)[:100]}", code="peer.papers", hint=hint) from None

"""The way to one other peer: two connections, so that a word never waits behind a model.

What is told goes as one signed POST, and what comes back in its answer is taken in like a request of that peer. A
message may be lost, and the machines live with that: nothing is ever tried again here, nothing is broken off but by the
connection's own timeouts, and where too much waits already, the message is dropped.

Patience for an answer is learned: the median of the last ones, plus four times their usual spread, and never less than
`FLOOR_S`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import structlog

from shoal import peer_wire
from shoal.core.errors import InvalidPayload, Refused, ShoalError
from shoal.core.pacing import RATE_UNKNOWN, TIMES
from shoal.core.peer_message import PeerMessage
from shoal.peer_wire import Letter
from shoal.runtime.http import Link
from shoal.runtime.store import FileSource
from shoal.runtime.threads import in_thread
from shoal.trust.codes import refusal
from shoal.trust.envelope import Request, Signer, check_digest, read_answer, sha256
from shoal.trust.gatekeeper import Gatekeeper
from shoal.trust.papers import Peer, Roster
from shoal_peer.claims import check_claims
from shoal_peer.entry import AGAIN_S
from shoal_peer.intake import Intake, Standard
from shoal_peer.ledger import Ledger
from shoal_peer.progress import PIECE_BYTES, TELL_S, Progress

FLOOR_S = {"words": 5.0, "models": 30.0}
REMEMBERED = 15
WAITING_MAX = {"words": 16, "models": 3}
"""Requests to one peer that may wait. More are dropped: that peer is not there, or far behind."""
AT_ONCE = {"words": 16, "models": 1}

Told = tuple[PeerMessage, FileSource | None]
"""A message and its body, opened when it was told, so that nobody can sweep it away."""


class Patience:
    """How long to wait for an answer. Any thread may call."""

    def __init__(self, floor_s: float) -> None:
        self._floor_s = floor_s
        self._took: deque[float] = deque(maxlen=REMEMBERED)

    def learn(self, seconds: float) -> None:
        """An answer took so long."""
        self._took.append(seconds)

    @property
    def usual(self) -> float | None:
        """How long the last answers took, in the middle; None without any."""
        took = list(self._took)
        return median(took) if took else None

    @property
    def seconds(self) -> float:
        """As long as answers take, and a good deal more."""
        took = list(self._took)
        if not took:
            return self._floor_s
        usual = median(took)
        return max(self._floor_s, usual + 4 * median(abs(one - usual) for one in took))


@dataclass(frozen=True)
class Office:
    """What all links of a peer share. `wall_s`: seconds since 1970, for certificates alone."""

    standard: Standard
    signer: Signer
    gate: Gatekeeper
    gate_lock: threading.Lock
    ledger: Ledger
    wall_s: Callable[[], int]
    entry: bytes = b""
    """What a newcomer shows to those that do not know it; empty: it has no certificate."""
    refuse: Callable[[str, str, str], None] = lambda code, why, sender: None
    """Told of answers that had to be refused, in the event loop: `(code, why, sender)`."""

    def recognise(self, answer: Any, request: Request) -> None:
        """Raise unless the one who was asked has given this answer."""
        with self.gate_lock:
            self.gate.recognise(answer, request, self.wall_s())


class _Way:
    """One connection, for words or for models."""

    def __init__(self, url: str, kind: str) -> None:
        self.link = Link(url, read_s=FLOOR_S[kind])
        self.patience = Patience(FLOOR_S[kind])
        self.waiting, self.most = 0, WAITING_MAX[kind]
        self.turn = asyncio.Semaphore(AT_ONCE[kind])


class PeerLink:
    """To one peer. `tell` is called in the event loop; `heard` gets there what the peer answers, with its intake."""

    def __init__(
        self, peer: Peer, url: str, office: Office, heard: Callable[[Sequence[PeerMessage], Intake], None]
    ) -> None:
        self.peer, self.url, self._office, self._heard = peer, url, office, heard
        self._ways = {kind: _Way(url, kind) for kind in FLOOR_S}
        self.failed, self.dropped = 0, 0
        self.last_error = ""
        self._enter_at = 0.0
        self.log: Any = structlog.get_logger("peer.link").bind(peer=peer.node)

    async def tell(self, told: Sequence[Told]) -> None:
        """Send these messages in one letter; once, and for better or worse."""
        way = self._ways["models" if any(source is not None for _, source in told) else "words"]
        if way.waiting >= way.most:
            self.dropped += 1
            return
        way.waiting += 1
        try:
            await self._its_turn(way, told)
            try:
                messages, intake = await in_thread(partial(self._post, way, told))
            finally:
                way.turn.release()
        except ShoalError as error:
            self._note(error)
            if isinstance(error, InvalidPayload):
                self._office.refuse(error.code, error.message, self.peer.node)
            if error.code == "trust.stranger":
                await self._enter()
            return
        finally:
            way.waiting -= 1
        if messages:
            self._heard(messages, intake)
        else:
            intake.release()

    async def _its_turn(self, way: _Way, told: Sequence[Told]) -> None:
        """Wait for the way to be free; a model that waits is under way, too."""
        progress = self._progress(told)
        while True:
            try:
                async with asyncio.timeout(TELL_S):
                    await way.turn.acquire()
            except TimeoutError:
                for one in progress:
                    one.add(0)
            else:
                return

    def _progress(self, told: Sequence[Told]) -> list[Progress]:
        """Of each model among these, in their order."""
        models = [message for message, source in told if source is not None]
        return [Progress(self._office.standard.moved, self.peer.node, one, leaving=True) for one in models]

    def _note(self, error: ShoalError) -> None:
        self.failed += 1
        if error.message != self.last_error:  # a peer that is not there says so every second
            self.last_error = error.message
            self.log.info("not delivered", code=error.code, why=error.message)

    async def _enter(self) -> None:
        """Show one's certificate to a peer that holds an older roster; what was to be told is told again anyway."""
        now = time.monotonic()
        if not self._office.entry or now < self._enter_at:
            return
        self._enter_at = now + AGAIN_S
        try:
            await in_thread(self._shown)
        except ShoalError as error:
            self.log.warning("not let in", code=error.code, why=error.message, hint=error.hint)
        else:
            self.log.info("let in, by the certificate")

    def _shown(self) -> None:
        """In a thread."""
        self.ask("POST", f"/p2p/{self._office.standard.job}/enter", "", self._office.entry, Roster.BYTES_MAX)

    def ask(self, method: str, path: str, query: str, content: bytes, bytes_max: int) -> bytes:
        """Send a signed request that is no letter, and return its answer, which is not signed. Blocks.

        Raises `ShoalError`.
        """
        office, way = self._office, self._ways["words"]
        with office.gate_lock:
            request = office.signer.request(self.peer.peer_id, method, path, query, sha256(content))
        headers = {**request.headers(), "Content-Length": str(len(content))}
        target = f"{path}?{query}" if query else path
        try:
            with way.link.exchange(method, target, headers=headers, content=content, own=True) as answer:
                return answer.read(bytes_max)
        finally:
            sent, received = way.link.traffic.take()
            office.ledger.book(self.peer.node, sent=sent, received=received)

    def _post(self, way: _Way, told: Sequence[Told]) -> tuple[tuple[PeerMessage, ...], Intake]:
        """In a thread: the request, and what was answered."""
        office = self._office
        letter = Letter(office.standard.job, tuple(message for message, _ in told))
        head = peer_wire.encode(letter)
        path = f"/p2p/{letter.job}"
        with office.gate_lock:  # numbers leave in the order in which they are drawn, or nearly so
            request = office.signer.request(self.peer.peer_id, "POST", path, "", sha256(head))
        sources = [source for _, source in told if source is not None]
        nbytes = len(head) + sum(map(len, sources))
        headers = {**request.headers(), "Content-Type": peer_wire.MEDIA_TYPE, "Content-Length": str(nbytes)}
        begun, read_s = time.monotonic(), way.patience.seconds
        content: bytes | Iterator[bytes] = head
        if sources:  # who does not want a model says so before it is sent
            headers["Expect"] = "100-continue"
            read_s += TIMES * nbytes / RATE_UNKNOWN  # much of it may be in buffers on the way when all is handed over
            content = way.link.once_welcome(self._pieces(way, head, told))
        try:
            with way.link.exchange("POST", path, headers=headers, content=content, read_s=read_s, own=True) as answer:
                way.patience.learn(time.monotonic() - begun)
                said = read_answer(answer.status, list(answer.headers.items()))
                office.recognise(said, request)
                return self._taken_in(answer.pieces(), length_of(answer.headers), said.digest)
        finally:
            sent, received = way.link.traffic.take()
            office.ledger.book(self.peer.node, sent=sent, received=received)

    def _pieces(self, way: _Way, head: bytes, told: Sequence[Told]) -> Iterator[bytes]:
        way.link.traffic.count(up=len(head))
        yield head
        sources = [source for _, source in told if source is not None]
        for source, progress in zip(sources, self._progress(told), strict=True):
            for start in range(0, len(source), PIECE_BYTES):
                piece = source[start : start + PIECE_BYTES]
                progress.add(len(piece))
                way.link.traffic.count(up=len(piece))
                yield piece

    def _taken_in(self, pieces: Iterator[bytes], nbytes: int, digest: str) -> tuple[tuple[PeerMessage, ...], Intake]:
        """The messages of an answer; an empty one has none."""

        office = self._office

        def admit(found: str, letter: Letter) -> None:
            check_digest(digest, found)
            with office.gate_lock:
                check_claims(letter, self.peer.node, office.gate.members())

        standard, most = office.standard, peer_wire.BODIES_MAX
        with Intake(standard, self.peer.node, nbytes, admit, bodies_max=most) as intake:
            for piece in pieces:
                intake.feed(piece)
            if nbytes:
                return intake.finish(), intake
            if digest != sha256(b""):
                raise refusal("trust.digest", "an answer of nothing; something was signed")
            return (), intake

    @property
    def rtt_s(self) -> float | None:
        """How long words take there and back, in the middle; None: none has come back yet."""
        return self._ways["words"].patience.usual

    def close(self) -> None:
        """Let go of the connections, whatever goes over them."""
        for way in self._ways.values():
            way.link.abort()
            way.link.close()


def length_of(headers: Mapping[str, str]) -> int:
    """How long an answer is. Raises `Refused` where it is not said."""
    said = headers.get("content-length", "")
    if not said.isdecimal() or len(said) > 18:
        raise Refused(
            "an answer that does not say how long it is", code="body.length-required", hint="is it a proxy's?"
        )
    return int(said)


def wall_s() -> int:
    """Seconds since 1970, for certificates alone."""
    return int(time.time())


def letters(told: Sequence[Told]) -> list[list[Told]]:
    """Cut into what one request each may hold: with one body at most."""
    rest, found = list(told), []
    while rest:
        count = peer_wire.fitting([message for message, _ in rest], 1)
        found.append(rest[:count])
        rest = rest[count:]
    return found


def address_of(peer: Peer, known: dict[str, str]) -> str:
    """Where a peer can be reached: what a person said, or the roster. Raises `Refused` if nobody has said."""
    url = known.get(peer.node) or (peer.urls[0] if peer.urls else "")
    if not url:
        raise Refused(f"nobody says where {peer.node} is", code="peer.address", hint=f"give --join {peer.node}=URL")
    return url

"""Link to one other peer: two connections, so that a short message never waits behind a model.

Messages are sent in a signed POST; those in its response are handled like a request of that peer. Messages may be
lost, which state machines tolerate: nothing is retried here, only the connection's timeouts break it off, and
messages beyond the queue's limit are dropped.

The timeout for an answer is learned: the median of the last ones, plus four times their usual spread, and at least
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

from shoal.core.errors import InvalidPayload, Refused, ShoalError
from shoal.core.mixing.exchange_pacing import RATE_UNKNOWN, TIMES
from shoal.core.protocol.peer_message import PeerMessage
from shoal.peering.http.message_receiver import ExpectedModel, MessageReceiver
from shoal.peering.roster.example_claims import check_claims
from shoal.peering.roster.join_certificate import AGAIN_S
from shoal.peering.state.byte_counts import ByteCounts
from shoal.peering.state.progress_report import TELL_S, TransferProgress, pieces_of
from shoal.runtime.http.client import Link
from shoal.runtime.threads import in_thread
from shoal.trust.codes import refusal
from shoal.trust.documents import Roster, RosterEntry
from shoal.trust.envelope import SignedRequest, Signer, check_digest, read_answer, sha256
from shoal.trust.request_verifier import RequestVerifier
from shoal.wire import peer_codec
from shoal.wire.payload import ByteSource
from shoal.wire.peer_codec import MessageBatch

FLOOR_S = {"messages": 5.0, "models": 30.0}
REMEMBERED = 15
WAITING_MAX = {"messages": 16, "models": 3}
"""Requests to one peer that may wait. More are dropped: that peer is not there, or far behind."""
AT_ONCE = {"messages": 16, "models": 1}

OutgoingMessage = tuple[PeerMessage, ByteSource | None]
"""A message and its body, which was opened at once so that it cannot be swept."""


class AnswerTimeout:
    """The timeout for answers, learned from earlier ones. Any thread may call."""

    def __init__(self, floor_s: float) -> None:
        self._floor_s = floor_s
        self._took: deque[float] = deque(maxlen=REMEMBERED)

    def record(self, seconds: float) -> None:
        """Record how long an answer took."""
        self._took.append(seconds)

    @property
    def median_s(self) -> float | None:
        """Return the median duration of the last answers; None without any."""
        took = list(self._took)
        return median(took) if took else None

    @property
    def seconds(self) -> float:
        """Return the timeout: the median plus four times the median deviation, at least the floor."""
        took = list(self._took)
        if not took:
            return self._floor_s
        usual = median(took)
        return max(self._floor_s, usual + 4 * median(abs(one - usual) for one in took))


OnMessages = Callable[[Sequence[PeerMessage], MessageReceiver], None]
"""Receives the messages of an answer, in the event loop."""


@dataclass(frozen=True)
class LinkContext:
    """The objects that all links of a peer share. `wall_s`: seconds since 1970, for certificates only."""

    expected_model: ExpectedModel
    signer: Signer
    verifier: RequestVerifier
    verifier_lock: threading.Lock
    byte_counts: ByteCounts
    wall_s: Callable[[], int]
    entry: bytes = b""
    """Join certificate for peers that do not know this one; empty: it has none."""
    on_refused: Callable[[str, str, str], None] = lambda code, why, sender: None
    """Told of answers that had to be refused, in the event loop: `(code, why, sender)`."""

    def verify_answer(self, answer: Any, request: SignedRequest) -> None:
        """Raise unless the peer that was asked signed this answer."""
        with self.verifier_lock:
            self.verifier.verify_answer(answer, request, self.wall_s())


class _PeerConnection:
    """One connection, for messages or for models."""

    def __init__(self, url: str, kind: str) -> None:
        self.link = Link(url, read_s=FLOOR_S[kind])
        self.timeout = AnswerTimeout(FLOOR_S[kind])
        self.waiting, self.queue_max = 0, WAITING_MAX[kind]
        self.slots = asyncio.Semaphore(AT_ONCE[kind])


class PeerLink:
    """The link to one peer. `send` is called in the event loop; `heard` receives there the peer's answers with their
    receiver."""

    def __init__(
        self,
        peer: RosterEntry,
        url: str,
        context: LinkContext,
        heard: OnMessages,
    ) -> None:
        self.peer, self.url, self._context, self._on_messages = peer, url, context, heard
        self._connections = {kind: _PeerConnection(url, kind) for kind in FLOOR_S}
        self.failed, self.dropped = 0, 0
        self.last_error = ""
        self._enter_at = 0.0
        self.log: Any = structlog.get_logger("peer.link").bind(peer=peer.node)

    async def send(self, messages: Sequence[OutgoingMessage]) -> None:
        """Send messages in one batch, once; it is not retried."""
        way = self._connections["models" if any(source is not None for _, source in messages) else "messages"]
        if way.waiting >= way.queue_max:
            self.dropped += 1
            return
        way.waiting += 1
        try:
            await self._acquire(way, messages)
            try:
                answers, receiver = await in_thread(partial(self._post, way, messages))
            finally:
                way.slots.release()
        except ShoalError as error:
            self._record_error(error)
            if isinstance(error, InvalidPayload):
                self._context.on_refused(error.code, error.message, self.peer.node)
            if error.code == "trust.stranger":
                await self._present_certificate()
            return
        finally:
            way.waiting -= 1
        if answers:
            self._on_messages(answers, receiver)
        else:
            receiver.release()

    async def _acquire(self, way: _PeerConnection, messages: Sequence[OutgoingMessage]) -> None:
        """Wait for a free slot, and report a waiting model as under way."""
        progress = self._progress(messages)
        while True:
            try:
                async with asyncio.timeout(TELL_S):
                    await way.slots.acquire()
            except TimeoutError:
                for one in progress:
                    one.add(0)
            else:
                return

    def _progress(self, messages: Sequence[OutgoingMessage]) -> list[TransferProgress]:
        """Return the progress of each model among the messages, in order."""
        models = [message for message, source in messages if source is not None]
        return [
            TransferProgress(self._context.expected_model.on_transfer, self.peer.node, one, leaving=True)
            for one in models
        ]

    def _record_error(self, error: ShoalError) -> None:
        self.failed += 1
        if error.message != self.last_error:  # a peer that is not there says so every second
            self.last_error = error.message
            self.log.info("not delivered", code=error.code, why=error.message)

    async def _present_certificate(self) -> None:
        """Show the certificate to a peer with an older roster; lost messages are sent again by the machines."""
        now = time.monotonic()
        if not self._context.entry or now < self._enter_at:
            return
        self._enter_at = now + AGAIN_S
        try:
            await in_thread(self._post_certificate)
        except ShoalError as error:
            self.log.warning("the peer does not admit this node", code=error.code, why=error.message, hint=error.hint)
        else:
            self.log.info("admitted by the certificate")

    def _post_certificate(self) -> None:
        """Send the certificate; runs in a thread."""
        self.request(
            "POST",
            f"/p2p/{self._context.expected_model.job}/join-by-certificate",
            "",
            self._context.entry,
            Roster.BYTES_MAX,
        )

    def request(self, method: str, path: str, query: str, content: bytes, bytes_max: int) -> bytes:
        """Send a signed request that is not a batch; return its unsigned answer. Blocks.

        Raises `ShoalError`.
        """
        context, way = self._context, self._connections["messages"]
        with context.verifier_lock:
            request = context.signer.request(self.peer.peer_id, method, path, query, sha256(content))
        headers = {**request.headers(), "Content-Length": str(len(content))}
        target = f"{path}?{query}" if query else path
        try:
            with way.link.exchange(method, target, headers=headers, content=content, own=True) as answer:
                return answer.read(bytes_max)
        finally:
            sent, received = way.link.traffic.take()
            context.byte_counts.add(self.peer.node, sent=sent, received=received)

    def _post(
        self, way: _PeerConnection, messages: Sequence[OutgoingMessage]
    ) -> tuple[tuple[PeerMessage, ...], MessageReceiver]:
        """Send a batch and read the answer; runs in a thread."""
        context = self._context
        batch = MessageBatch(context.expected_model.job, tuple(message for message, _ in messages))
        head = peer_codec.encode(batch)
        path = f"/p2p/{batch.job}"
        with context.verifier_lock:  # numbers leave in the order in which they are drawn, or nearly so
            request = context.signer.request(self.peer.peer_id, "POST", path, "", sha256(head))
        sources = [source for _, source in messages if source is not None]
        nbytes = len(head) + sum(map(len, sources))
        headers = {**request.headers(), "Content-Type": peer_codec.MEDIA_TYPE, "Content-Length": str(nbytes)}
        begun, read_s = time.monotonic(), way.timeout.seconds
        content: bytes | Iterator[bytes] = head
        if sources:  # the receiver may refuse a model before it is sent
            headers["Expect"] = "100-continue"
            read_s += TIMES * nbytes / RATE_UNKNOWN  # much of it may be in buffers on the way when all is handed over
            content = way.link.after_continue(self._pieces(head, messages))
        try:
            with way.link.exchange("POST", path, headers=headers, content=content, read_s=read_s, own=True) as answer:
                way.timeout.record(time.monotonic() - begun)
                signed = read_answer(answer.status, list(answer.headers.items()))
                context.verify_answer(signed, request)
                return self._read_answer(answer.pieces(), content_length(answer.headers), signed.digest)
        finally:
            sent, received = way.link.traffic.take()
            context.byte_counts.add(self.peer.node, sent=sent, received=received)

    def _pieces(self, head: bytes, messages: Sequence[OutgoingMessage]) -> Iterator[bytes]:
        yield head
        sources = [source for _, source in messages if source is not None]
        for source, progress in zip(sources, self._progress(messages), strict=True):
            for piece in pieces_of(source):
                progress.add(len(piece))
                yield piece

    def _read_answer(
        self, pieces: Iterator[bytes], nbytes: int, digest: str
    ) -> tuple[tuple[PeerMessage, ...], MessageReceiver]:
        """Return the messages of an answer; none for an empty one."""

        context = self._context

        def admit(found: str, batch: MessageBatch) -> None:
            check_digest(digest, found)
            with context.verifier_lock:
                check_claims(batch, self.peer.node, context.verifier.members())

        expected, most = context.expected_model, peer_codec.BLOBS_MAX
        with MessageReceiver(expected, self.peer.node, nbytes, admit, blobs_max=most) as receiver:
            for piece in pieces:
                receiver.feed(piece)
            if nbytes:
                return receiver.finish(), receiver
            if digest != sha256(b""):
                raise refusal("trust.digest", "an answer of nothing; something was signed")
            return (), receiver

    @property
    def rtt_s(self) -> float | None:
        """Return the median round-trip time of messages in seconds; None without an answer yet."""
        return self._connections["messages"].timeout.median_s

    def close(self) -> None:
        """Close the connections and abort running requests."""
        for way in self._connections.values():
            way.link.abort()
            way.link.close()


def content_length(headers: Mapping[str, str]) -> int:
    """Return the announced length of an answer. Raises `Refused` without one."""
    answer = headers.get("content-length", "")
    if not answer.isdecimal() or len(answer) > 18:
        raise Refused("an answer without its length", code="body.length-required", hint="it may come from a proxy")
    return int(answer)


def wall_s() -> int:
    """Return the seconds since 1970, for certificates only."""
    return int(time.time())


def split_messages(messages: Sequence[OutgoingMessage]) -> list[list[OutgoingMessage]]:
    """Split messages into batches with at most one blob each."""
    rest, found = list(messages), []
    while rest:
        count = peer_codec.fitting([message for message, _ in rest], 1)
        found.append(rest[:count])
        rest = rest[count:]
    return found


def peer_url(peer: RosterEntry, known: dict[str, str]) -> str:
    """Return a peer's address from the settings or the roster. Raises `Refused` without one."""
    url = known.get(peer.node) or (peer.urls[0] if peer.urls else "")
    if not url:
        raise Refused(
            f"the address of {peer.node} is unknown", code="peer.address", hint=f"give --join {peer.node}=URL"
        )
    return url

"""Receiver of a message batch in pieces: its head, which authenticates all of it, and then its blobs, into files.

    feed(piece)    for each piece; `batch` is set once the head is complete
    finish()       at the end: return the messages, whose blobs are stored and checked

The head's digest is verified and `admit` is called before the first byte of a blob. A blob must be as long as the job's
model, begin with its canonical header, have the announced SHA-256, and, after the filters are undone, be finite and of
a plausible norm. A refused batch leaves no files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from shoal.core.algorithm.filter import Filters, packed_layouts, unpack
from shoal.core.errors import InvalidPayload, Refused
from shoal.core.mixing.exchange_pacing import NORM_TIMES_MAX
from shoal.core.model.tree import Layout
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import ExchangeAccept, PeerMessage, RingChunk
from shoal.peering.state.blob_holds import BlobHolds
from shoal.peering.state.peer_blobs import IncomingChunk, PeerBlobs
from shoal.peering.state.progress_report import OnTransfer, TransferProgress, ignore_transfer
from shoal.runtime.partial_blobs import IncomingBlob
from shoal.wire import peer_codec
from shoal.wire.payload import PayloadCheck, measure, payload_layout
from shoal.wire.peer_codec import MessageBatch

QUICK_BYTES_MAX = 2 << 20
"""A transient blob up to this length is checked in the event loop, in two milliseconds: to hand it to a thread and back
takes about as long."""


@dataclass
class ExpectedModel:
    """Expected properties of a job's models, and their folder. `norm`: of this peer's present model.

    `moved` is called, in any thread, with the progress of transfers. `filters`: filters of incoming models. Until a
    model is known (`expect`), none is accepted.
    """

    job: str
    blobs: PeerBlobs
    filters: Filters = ()
    norm: Callable[[], float] = lambda: 0.0
    on_transfer: OnTransfer = ignore_transfer
    holds: BlobHolds = field(default_factory=BlobHolds)
    """Holds on received blobs that no event has used yet."""
    layout: Layout = field(default_factory=lambda: payload_layout({}))
    """Layout of a blob on its way."""
    _layouts: dict[str, Layout | None] = field(default_factory=dict)

    def set_model(self, layouts: dict[str, Layout | None], norm: Callable[[], float]) -> None:
        """Expect models of these layouts: of the model, and of all that is mixed with it. `norm`: as above."""
        self._layouts, self.norm = layouts, norm
        self.layout = payload_layout(packed_layouts(self.filters, layouts))

    @property
    def body_bytes(self) -> int:
        """Return the bytes of a model as it is transferred."""
        return len(self.layout.header) + self.layout.nbytes

    @property
    def batch_bytes_max(self) -> int:
        """Return the longest batch of a request: a head and one model."""
        return 4 + peer_codec.HEAD_BYTES_MAX + self.body_bytes

    def norm_of(self, ref: BlobRef) -> float:
        """Return the norm of a received model. Raises `InvalidPayload` for a non-finite one."""
        slots = self.blobs.get(ref)
        norm = measure(slots)
        if not self.filters or not self._layouts:
            return norm
        return measure(unpack(self.filters, slots, self._layouts))


class MessageReceiver:
    """One batch of one peer (`owner`: its name), of `nbytes` bytes. Use it as a context manager.

    `admit(digest, batch)` raises to refuse; it is called once, when the head has come. `blobs_max`: how many blobs
    may follow.
    """

    def __init__(
        self,
        expected: ExpectedModel,
        owner: str,
        nbytes: int,
        admit: Callable[[str, MessageBatch], None],
        *,
        blobs_max: int = 1,
    ) -> None:
        self._expected_model, self._owner, self._nbytes = expected, owner, nbytes
        self._admit, self._blobs_max = admit, blobs_max
        self._head = bytearray()
        self._head_bytes = 4
        self._due: list[tuple[BlobRef, PeerMessage]] = []
        self._progress: TransferProgress | None = None
        self._open: tuple[IncomingBlob | IncomingChunk, PayloadCheck] | None = None
        self._stored: list[BlobRef] = []
        self.batch: MessageBatch | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._open is not None:
            # A blob that broke off is not resumed among peers: the machines say everything again.
            self._open[0].__exit__(InvalidPayload, InvalidPayload("it broke off"), None)
        if error is not None:
            self.release()

    def release(self) -> None:
        """Release the blobs once the messages have been handled; they stay only if something names them."""
        self._expected_model.holds.release(ref.digest for ref in self._stored)
        self._stored = []

    def feed(self, piece: bytes | memoryview) -> None:
        """Process received bytes. Raises `InvalidPayload`, `Refused`, what `admit` raises, `StorageFailed`."""
        view = self.feed_head(piece)
        while view:
            view = self._write_blob(view)

    @property
    def is_quick(self) -> bool:
        """Return whether the bytes of the open blob are only copied, hashed and measured in memory, and few."""
        incoming = self._open[0] if self._open is not None else None
        return isinstance(incoming, IncomingChunk) and incoming.ref.nbytes <= QUICK_BYTES_MAX

    def feed_head(self, piece: bytes | memoryview) -> memoryview:
        """Process bytes of the head; return the rest. Raises as `feed` does."""
        view = memoryview(piece)
        while view and self.batch is None:
            taken = view[: self._head_bytes - len(self._head)]
            self._head += taken
            view = view[len(taken) :]
            if len(self._head) == self._head_bytes:
                self._open_head()
        return view

    def _open_head(self) -> None:
        if self._head_bytes == 4:
            self._head_bytes += peer_codec.head_bytes(bytes(self._head))
            return
        expected, batch = self._expected_model, peer_codec.decode(bytes(self._head[4:]))
        if batch.job != expected.job:
            raise Refused(f"about job {batch.job}; this is {expected.job}", code="peer.job", hint="check the address")
        for message in batch.messages:
            if message.node != self._owner:
                text = f"{self._owner} speaks as {message.node}"
                raise Refused(text, code="peer.sender", hint="a peer can send only its own messages")
        if len(batch.blobs) > self._blobs_max:
            raise InvalidPayload(f"{len(batch.blobs)} blobs; at most {self._blobs_max}", code="payload.length")
        whole = len(self._head) + sum(ref.nbytes for ref in batch.blobs)
        if whole != self._nbytes:
            raise InvalidPayload(f"a message batch of {whole} bytes in a body of {self._nbytes}", code="payload.length")
        self._admit(hashlib.sha256(self._head).hexdigest(), batch)
        self.batch = batch
        self._due = [(ref, one) for one in batch.messages if (ref := peer_codec.blob_of(one))]
        self._next_blob()

    def _expected(self, message: PeerMessage) -> Layout | None:
        """Return the expected layout; None for chunks, which have layouts of their own."""
        return None if isinstance(message, RingChunk) else self._expected_model.layout

    def _next_blob(self) -> None:
        if self._due:
            ref, message = self._due[0]
            check = PayloadCheck(ref.nbytes, self._expected(message), nbytes_max=self._expected_model.body_bytes)
            self._progress = TransferProgress(self._expected_model.on_transfer, self._owner, message, leaving=False)
            self._progress.add(0)
            incoming = self._expected_model.blobs.incoming(self._owner, ref, transient=isinstance(message, RingChunk))
            self._expected_model.holds.hold(ref.digest)
            self._stored.append(ref)
            self._open = incoming, check

    def _write_blob(self, view: memoryview) -> memoryview:
        """Write bytes to the open blob; return the rest."""
        if self._open is None:
            raise InvalidPayload("more has come than the head announced", code="payload.length")
        incoming, check = self._open
        taken = view[: incoming.ref.nbytes - incoming.offset]
        if self._progress is not None:
            self._progress.add(len(taken))
        check.feed(taken)
        incoming.write(taken)
        if incoming.offset == incoming.ref.nbytes:
            check.finish()
            self._close_blob(incoming)
        return view[len(taken) :]

    def _close_blob(self, incoming: IncomingBlob | IncomingChunk) -> None:
        """Store a complete blob under its name and check its norm."""
        self._open = None
        with incoming:
            incoming.finish()
        ref, message = self._due.pop(0)
        try:
            self._check_norm(ref, message)
        except InvalidPayload:
            self._expected_model.blobs.delete(ref.digest)
            raise
        self._next_blob()

    def _check_norm(self, ref: BlobRef, message: PeerMessage) -> None:
        """Refuse a model whose norm is too large or not finite."""
        if isinstance(message, ExchangeAccept):
            return  # a peer repeats an exchange until it hears the answer: the state machine checks this one
        norm = self._expected_model.norm_of(ref)
        most = NORM_TIMES_MAX * max(self._expected_model.norm(), 1.0)
        if norm > most:
            raise InvalidPayload(
                f"a model of norm {norm:.6g}; at most {most:.6g}, {NORM_TIMES_MAX:g} times this peer's own",
                code="payload.norm",
                hint="the training diverged: lower the learning rate, or clip",
            )

    def finish(self) -> tuple[PeerMessage, ...]:
        """Return the messages of a complete batch. Raises `InvalidPayload` for a truncated one."""
        if self.batch is None or self._open is not None:
            raise InvalidPayload("the message batch is cut short", code="payload.short")
        return self.batch.messages

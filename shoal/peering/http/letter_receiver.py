"""A letter that comes in pieces: its head, which says and authenticates everything, and then its bodies, into files.

    feed(piece)    as often as something comes; `letter` is there once the head is
    finish()       all has come: the messages, whose bodies are stored and as they should be

The head is held against the signed digest, and `admit` is asked, before a byte of a body is looked at. A body must be
as long as the job's model, begin with its canonical header byte for byte, have the announced SHA-256, and be finite and
not absurdly long, without the filters that it came through. What is refused leaves nothing behind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from shoal import peer_wire, wire
from shoal.core.algorithm import tree_slot
from shoal.core.errors import InvalidPayload, Refused
from shoal.core.filter import Filters, packed_layout, unpack_tree
from shoal.core.message import Ref
from shoal.core.pacing import NORM_TIMES_MAX
from shoal.core.peer_message import Part, PeerMessage, Swapped
from shoal.core.tree import Layout
from shoal.peer_wire import Letter
from shoal.runtime.store import FileBodies, Incoming
from shoal_peer.folder import Awaited
from shoal_peer.progress import Progress, Tell, nobody


@dataclass
class Standard:
    """What every model of a job is held against, and where it is stored. `norm`: of this peer's own model as it is now.

    `moved` is told, in any thread, how far models have come.
    `filters`: models come through these. Until a model is known (`expect`), none can come.
    """

    job: str
    bodies: FileBodies
    filters: Filters = ()
    norm: Callable[[], float] = lambda: 0.0
    moved: Tell = nobody
    awaited: Awaited = field(default_factory=Awaited)
    """Bodies that have come and that nobody has acted on yet."""
    layout: Layout = field(default_factory=lambda: wire.payload_layout({}))
    """Of a body on its way."""
    _model: Layout | None = None

    def expect(self, model: Layout, norm: Callable[[], float]) -> None:
        """Models look like this from now on. `norm`: as above."""
        self._model, self.norm = model, norm
        self.layout = wire.payload_layout({"model": packed_layout(self.filters, model)})

    @property
    def body_bytes(self) -> int:
        """Bytes of a model on its way."""
        return len(self.layout.header) + self.layout.nbytes

    @property
    def letter_bytes_max(self) -> int:
        """The longest letter that a request may be: a head, and one model."""
        return 4 + peer_wire.HEAD_BYTES_MAX + self.body_bytes

    def measured(self, ref: Ref) -> float:
        """The norm of a body that has come. Raises `InvalidPayload` for one that is not finite."""
        slots = self.bodies.get(ref)
        norm = wire.measure(slots)
        if not self.filters or self._model is None:
            return norm
        return wire.measure({"model": unpack_tree(self.filters, tree_slot(slots, "model"), self._model)})


class Intake:
    """One letter of one peer (`owner`: its name), of `nbytes` bytes. Use it as a context manager.

    `admit(digest, letter)` raises to refuse; it is called once, when the head has come. `bodies_max`: how many bodies
    may follow.
    """

    def __init__(
        self, standard: Standard, owner: str, nbytes: int, admit: Callable[[str, Letter], None], *, bodies_max: int = 1
    ) -> None:
        self._standard, self._owner, self._nbytes = standard, owner, nbytes
        self._admit, self._bodies_max = admit, bodies_max
        self._head = bytearray()
        self._head_bytes = 4
        self._due: list[tuple[Ref, PeerMessage]] = []
        self._progress: Progress | None = None
        self._open: tuple[Incoming, wire.BodyCheck] | None = None
        self._stored: list[Ref] = []
        self.letter: Letter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._open is not None:
            # A body that broke off is not resumed among peers: the machines say everything again.
            self._open[0].__exit__(InvalidPayload, InvalidPayload("it broke off"), None)
        if error is not None:
            self.release()

    def release(self) -> None:
        """The messages have been acted on: from now on their bodies are kept only if somebody names them."""
        self._standard.awaited.release(ref.digest for ref in self._stored)
        self._stored = []

    def feed(self, piece: bytes | memoryview) -> None:
        """Take what has come. Raises `InvalidPayload`, `Refused`, what `admit` raises, `StorageFailed`."""
        view = self.feed_head(piece)
        while view:
            view = self._to_body(view)

    def feed_head(self, piece: bytes | memoryview) -> memoryview:
        """Take what belongs to the head; what is left. Raises as `feed` does."""
        view = memoryview(piece)
        while view and self.letter is None:
            taken = view[: self._head_bytes - len(self._head)]
            self._head += taken
            view = view[len(taken) :]
            if len(self._head) == self._head_bytes:
                self._open_head()
        return view

    def _open_head(self) -> None:
        if self._head_bytes == 4:
            self._head_bytes += peer_wire.head_bytes(bytes(self._head))
            return
        standard, letter = self._standard, peer_wire.decode(bytes(self._head[4:]))
        if letter.job != standard.job:
            raise Refused(f"about job {letter.job}; this is {standard.job}", code="peer.job", hint="check the address")
        for message in letter.messages:
            if message.node != self._owner:
                text = f"{self._owner} speaks as {message.node}"
                raise Refused(text, code="peer.sender", hint="everybody speaks for himself alone")
        if len(letter.bodies) > self._bodies_max:
            raise InvalidPayload(f"{len(letter.bodies)} bodies; at most {self._bodies_max}", code="payload.length")
        whole = len(self._head) + sum(ref.nbytes for ref in letter.bodies)
        if whole != self._nbytes:
            raise InvalidPayload(f"a letter of {whole} bytes in a body of {self._nbytes}", code="payload.length")
        self._admit(hashlib.sha256(self._head).hexdigest(), letter)
        self.letter = letter
        self._due = [(ref, one) for one in letter.messages if (ref := peer_wire.body_of(one))]
        self._next_body()

    def _expected(self, message: PeerMessage) -> Layout | None:
        """Pieces of a model have layouts of their own."""
        return None if isinstance(message, Part) else self._standard.layout

    def _next_body(self) -> None:
        if self._due:
            ref, message = self._due[0]
            check = wire.BodyCheck(ref.nbytes, self._expected(message), nbytes_max=self._standard.body_bytes)
            self._progress = Progress(self._standard.moved, self._owner, message, leaving=False)
            self._progress.add(0)
            incoming = self._standard.bodies.incoming(self._owner, ref)
            self._standard.awaited.hold(ref.digest)
            self._stored.append(ref)
            self._open = incoming, check

    def _to_body(self, view: memoryview) -> memoryview:
        """Give the open body its share; what is left."""
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
            self._close_body(incoming)
        return view[len(taken) :]

    def _close_body(self, incoming: Incoming) -> None:
        """All of a body has come: give it its name, and look at it as a whole."""
        self._open = None
        with incoming:
            incoming.finish()
        ref, message = self._due.pop(0)
        try:
            self._measure(ref, message)
        except InvalidPayload:
            self._standard.bodies.delete(ref.digest)
            raise
        self._next_body()

    def _measure(self, ref: Ref, message: PeerMessage) -> None:
        """Refuse one that is too long, or not finite."""
        if isinstance(message, Swapped):
            return  # who began an exchange must hear its answer, or asks for it for ever: the machine judges that
        norm = self._standard.measured(ref)
        most = NORM_TIMES_MAX * max(self._standard.norm(), 1.0)
        if norm > most:
            raise InvalidPayload(
                f"a model of norm {norm:.6g}; at most {most:.6g}, {NORM_TIMES_MAX:g} times this peer's own",
                code="payload.norm",
                hint="the training diverged: lower the learning rate, or clip",
            )

    def finish(self) -> tuple[PeerMessage, ...]:
        """The sender says that this was all. Raises `InvalidPayload` when it was too little."""
        if self.letter is None or self._open is not None:
            raise InvalidPayload("the letter is cut short", code="payload.short")
        return self.letter.messages

"""Reception of large bodies without the HTTP parser.

uvicorn passes a body on in pieces of at most 256 KiB and copies each piece twice. A `BodyReceiver` takes the connection
over after the head and receives the announced bytes into blocks of its own. It reads nothing beyond the body, so HTTP
continues afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

from starlette.requests import Request
from uvicorn.protocols.http.flow_control import FlowControl

from shoal.core.errors import Unreachable
from shoal.runtime.http.server.exchange import LEND_KEY

BLOCK_BYTES, BLOCK_BYTES_MIN = 1 << 20, 64 << 10
"""Large blocks cost the least (measured, processor time of an upload: 256 KiB a tenth more, 2 MiB a sixth more)."""

BLOCKS_BYTES = 32 << 20
"""Greatest memory of the blocks of all uploads together, except the smallest."""


class ConnectionLender(Protocol):
    """The HTTP protocol of a connection."""

    flow: FlowControl

    def came(self, count: int) -> None:
        """Count bytes of the body that came past the parser."""

    def take_back(self) -> None:
        """Resume HTTP: the body is complete."""

    def connection_lost(self, exc: Exception | None) -> None: ...
    def eof_received(self) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class BodyReceiver(asyncio.BufferedProtocol):
    """Receiver of the `due` bytes that are missing of a body; after `drop`, they are received and discarded."""

    def __init__(self, protocol: ConnectionLender, due: int, others: Iterable[BodyReceiver] = ()) -> None:
        self._protocol, self._due = protocol, due
        self._block = memoryview(bytearray(min(due, _room(others))))
        self._filled = 0
        self._unwanted = self._lost = False
        self._turned = asyncio.Event()  # the block is full, or nothing more will come

    @property
    def nbytes(self) -> int:
        """Memory that it holds."""
        return len(self._block)

    async def block(self, wait_s: float | None = None) -> memoryview:
        """Return the next bytes, valid until the next call; none after the last. `wait_s`: seconds after which those
        that have come are returned, though there is room for more."""
        while self._due and not self._lost and self._filled < len(self._block):
            self._turned.clear()
            self._protocol.flow.resume_reading()
            try:
                async with asyncio.timeout(wait_s):
                    await self._turned.wait()
            except TimeoutError:
                if self._filled:
                    self._protocol.flow.pause_reading()
                    break
        block, self._filled = self._block[: self._filled], 0
        return block

    def is_broken(self) -> bool:
        """Return whether the connection was lost before all had come."""
        return self._lost and self._due > 0

    def drop(self) -> None:
        """Discard what is still to come: a known sender may send it before it reads the answer."""
        self._unwanted, self._filled = True, 0

    # Methods for the event loop

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._block[self._filled : self._filled + self._due]

    def buffer_updated(self, nbytes: int) -> None:
        self._due -= nbytes
        self._protocol.came(nbytes)
        if not self._unwanted:
            self._filled += nbytes
        if not self._due:
            self._protocol.take_back()
        elif self._filled == len(self._block):
            self._protocol.flow.pause_reading()
        else:
            return
        self._turned.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._turned.set()
        self._protocol.connection_lost(exc)

    def eof_received(self) -> None:
        self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def _room(others: Iterable[BodyReceiver]) -> int:
    """Return the block size of one more receiver: the more of the common memory is taken, the smaller."""
    left = BLOCKS_BYTES - sum(one.nbytes for one in others)
    return min(BLOCK_BYTES, max(BLOCK_BYTES_MIN, left // 8))


async def pieces(request: Request, wait_s: float | None = None) -> AsyncGenerator[bytes | memoryview]:
    """Yield a request's body as it comes; each piece is valid until the next. Close it (`aclosing`). `wait_s`: seconds
    after which a piece is yielded, however short it is.

    Raises `Unreachable` when the connection breaks, after all that came before.
    """
    message = await request.receive()  # the first bytes; it also sends "100 Continue" if the client waits
    if message["type"] == "http.disconnect":
        raise _broken()
    if not message["more_body"]:
        yield message["body"]
        return
    receiver: BodyReceiver = request.scope[LEND_KEY]()
    try:
        yield message["body"]
        while block := await receiver.block(wait_s):
            yield block
        if receiver.is_broken():
            raise _broken()
    finally:
        receiver.drop()


def _broken() -> Unreachable:
    return Unreachable("the connection broke during the upload", hint="go on from Upload-Offset")

"""Large bodies, past HTTP: after a head nothing but the announced bytes can come, so nothing needs to be parsed.

uvicorn hands a body on in pieces of at most 256 KiB, each copied twice and waited for through every layer of the
application. Here the connection is lent to an `Intake` until the body is complete: it receives into one block of its
own, which is handed on when it is full. Nothing is read beyond the body, so HTTP goes on where it was left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

from fastapi import Request
from uvicorn.protocols.http.flow_control import FlowControl

from shoal.core.errors import Unreachable

BLOCK_BYTES, BLOCK_BYTES_MIN = 1 << 20, 64 << 10
"""Large blocks cost the least (measured, processor time of an upload: 256 KiB a tenth more, 2 MiB a sixth more)."""

BLOCKS_BYTES = 32 << 20
"""What the blocks of all uploads may take together, but for the smallest."""

LEND_KEY = "shoal.lend"
"""Where a request's scope has the function that lends its connection."""


class Lender(Protocol):
    """The HTTP protocol of a connection."""

    flow: FlowControl

    def came(self, count: int) -> None:
        """So many bytes of the body have come past the parser."""

    def take_back(self) -> None:
        """The body is complete; what comes next is HTTP again."""

    def connection_lost(self, exc: Exception | None) -> None: ...
    def eof_received(self) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Intake(asyncio.BufferedProtocol):
    """Receives the `due` bytes that are missing of a body. What nobody waits for any more is received and dropped."""

    def __init__(self, lender: Lender, due: int, others: Iterable[Intake] = ()) -> None:
        self._lender, self._due = lender, due
        self._block = memoryview(bytearray(min(due, _room(others))))
        self._filled = 0
        self._unwanted = self._lost = False
        self._turned = asyncio.Event()  # the block is full, or nothing more will come

    @property
    def nbytes(self) -> int:
        """Memory that it holds."""
        return len(self._block)

    async def block(self) -> memoryview:
        """The next bytes, valid until the next are asked for; none after the last."""
        if self._due and not self._lost and self._filled < len(self._block):
            self._turned.clear()
            self._lender.flow.resume_reading()
            await self._turned.wait()
        block, self._filled = self._block[: self._filled], 0
        return block

    def broken(self) -> bool:
        """Whether the connection was lost before all had come."""
        return self._lost and self._due > 0

    def drop(self) -> None:
        """Nobody wants what is still to come; a peer that we know may send it before it reads why."""
        self._unwanted, self._filled = True, 0

    # What the event loop calls

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._block[self._filled : self._filled + self._due]

    def buffer_updated(self, nbytes: int) -> None:
        self._due -= nbytes
        self._lender.came(nbytes)
        if not self._unwanted:
            self._filled += nbytes
        if not self._due:
            self._lender.take_back()
        elif self._filled == len(self._block):
            self._lender.flow.pause_reading()
        else:
            return
        self._turned.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._turned.set()
        self._lender.connection_lost(exc)

    def eof_received(self) -> None:
        self._lender.eof_received()

    def pause_writing(self) -> None:
        self._lender.pause_writing()

    def resume_writing(self) -> None:
        self._lender.resume_writing()


def _room(others: Iterable[Intake]) -> int:
    """The block of one more: the more of the common memory is taken, the smaller."""
    left = BLOCKS_BYTES - sum(one.nbytes for one in others)
    return min(BLOCK_BYTES, max(BLOCK_BYTES_MIN, left // 8))


async def pieces(request: Request) -> AsyncGenerator[bytes | memoryview]:
    """A request's body as it comes; each piece is valid until the next is asked for. To be closed (`aclosing`).

    Raises `Unreachable` when the connection breaks, after all that came before.
    """
    message = await request.receive()  # what came with the head, and a "100 Continue" to those who wait for one
    if message["type"] == "http.disconnect":
        raise _broken()
    if not message["more_body"]:
        yield message["body"]
        return
    intake: Intake = request.scope[LEND_KEY]()
    try:
        yield message["body"]
        while block := await intake.block():
            yield block
        if intake.broken():
            raise _broken()
    finally:
        intake.drop()


def _broken() -> Unreachable:
    return Unreachable("the connection broke during the upload", hint="go on from Upload-Offset")

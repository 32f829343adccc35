"""The limits of a request's head: its bytes, and its number of headers.

A server holds a head in memory until it is whole, before the sender is identified. A header of a few bytes takes a
hundred in memory, so both are limited.
"""

from __future__ import annotations

from collections.abc import Sequence

HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 128
HINT = f"send at most {HEAD_BYTES_MAX // 1024} KiB and {HEADERS_MAX} headers before the body"

HEADS_BYTES_MAX = 32 * 2**20
"""Greatest size of all incomplete heads of a server together."""
USUAL_BYTES_MAX = 8 * 1024
"""A head up to this size is taken even while all together take more than `HEADS_BYTES_MAX`."""

LINGER_S = 2.0
"""Time for which what still comes after a refusal is read and dropped. A server that closes a connection while the
client is sending makes the network discard the answer."""

Headers = Sequence[tuple[bytes, bytes]]


class HeadTooLarge(Exception):
    """A head that is longer, or has more headers, than a server takes."""


class PendingHeaders:
    """The incomplete heads of all connections of a server: their bytes together."""

    def __init__(self) -> None:
        self.nbytes = 0


class HeadLimit:
    """The head that is coming in on one connection, one of `heads`."""

    def __init__(self, heads: PendingHeaders) -> None:
        self._heads, self._pending, self._incomplete = heads, 0, True

    def came(self, count: int) -> None:
        """Count bytes that came in; call it before they are parsed."""
        if self._incomplete:
            self._pending += count
            self._heads.nbytes += count

    def check(self, headers: Headers | None) -> None:
        """Raise `HeadTooLarge` for a head that is incomplete and too large already; call it when all was parsed."""
        most = HEAD_BYTES_MAX if self._heads.nbytes <= HEADS_BYTES_MAX else USUAL_BYTES_MAX
        if self._incomplete and (self._pending > most or len(headers or ()) > HEADERS_MAX):
            raise HeadTooLarge

    def forget(self) -> None:
        """Note that nothing is held of the head any more; call it when the connection is lost."""
        self._heads.nbytes -= self._pending
        self._pending = 0

    def complete(self, target: bytes, headers: Headers) -> None:
        """Note that the head is complete. Raises `HeadTooLarge`."""
        self.forget()
        self._incomplete = False
        nbytes = len(target) + sum(len(name) + len(value) + 4 for name, value in headers)
        if nbytes > HEAD_BYTES_MAX or len(headers) > HEADERS_MAX:
            raise HeadTooLarge

    def next(self) -> None:
        """Note that the body is complete: a head comes next."""
        self._incomplete = True

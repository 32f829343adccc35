"""The bytes and the state of one request and its response."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SCOPE_KEY = "shoal.exchange"
"""Key of the `HttpExchange` in a request's ASGI scope."""
LEND_KEY = "shoal.lend"
"""Key of the function that lends the connection to a `BodyReceiver`."""
BREAK_KEY = "shoal.break"
"""Key of the function that closes the connection, even within an answer."""
WITHIN_KEY = "shoal.within"
"""Key of the function that sets the seconds within which the whole body must come."""

CONTINUE_BYTES = len(b"HTTP/1.1 100 Continue\r\n\r\n")


@dataclass
class HttpExchange:
    """One request and its response. `up`: bytes received; `down`: bytes sent; heads included."""

    up: int = 0
    up_body: int = 0
    down: int = 0
    down_head: int = 0
    closed: bool = False
    crowded: str = ""
    """Reason of a refusal because too many connections are open; else empty."""
    welcomes: bool = False
    """Leave the first "100 Continue" out of the count: a coordinator that forwards the request has asked for it."""
    gone: Callable[[], None] | None = None
    """Called when the other side hangs up before it was answered."""
    begun: float = 0.0
    """Time of the first byte, in seconds of `time.perf_counter`."""
    status: int = 0
    """Status of the answer, as it was written; 0: there is none."""
    heard: Callable[[], None] | None = None
    """Called when more of the request has come, and while the answer is taken."""

    def came(self, count: int) -> None:
        """Count received bytes."""
        self.up += count
        if self.heard is not None:
            self.heard()

    def wrote(self, data: bytes) -> bool:
        """Count sent bytes; return whether they are the head of the answer, which is its first write."""
        if self.welcomes:
            self.welcomes = False
            if len(data) == CONTINUE_BYTES:
                return False
        is_head = self.down == 0
        if is_head:
            self.down_head = len(data)
        if self.status < 200 and data[9:12].isdigit():  # else it is a part of a body
            self.status = int(data[9:12])
        self.down += len(data)
        return is_head

"""Relay of requests to the coordinator for nodes of the same job that have lost their own connection.

    any  /p2p/JOB/relay/PATH    PATH at the coordinator: the job's relay, or a blob of it
    (`shoal.runtime.http.relay`)

The sender has signed the request, and the coordinator signs its answer, or the answer is known by its SHA-256. So the
relay need not be trusted: it streams bytes without reading them. The signature must be that of a peer in the roster,
and the request number new. `RelayAllowance` bounds the bytes, `AT_ONCE_MAX` the requests. A node relays only while it
reaches the coordinator itself, so a message passes at most one relay.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from shoal.core.errors import NotAllowed, Refused, ShoalError, Unreachable
from shoal.peering.http.peer_link import wall_s
from shoal.peering.state.byte_counts import ByteCounts
from shoal.peering.state.peer_state import PeerDocuments
from shoal.runtime.http.client import ANY, Link, TryLater
from shoal.runtime.threads import in_thread
from shoal.trust.envelope import Headers, SignedRequest, read_request
from shoal.trust.keys import peer_id_of
from shoal.trust.request_verifier import RequestVerifier

MODELS_MAX = 8
"""Longest relayed body, in models of the job (plus a batch's head)."""
AT_ONCE_MAX = 8
"""Requests that are passed on at a time, for all."""
AT_ONCE_EACH_MAX = 4
NO_WAY_S = 30.0
"""Time in seconds for which a node without a connection asks not to be used as a relay."""
BUSY_S = 1.0
_UP = ("content-type", "content-length", "content-range", "range")
_DOWN = ("content-type", "content-length", "content-range", "etag", "retry-after", "upload-offset")
_SIGNED = ("shoal-from", "shoal-digest", "shoal-signature")


class RelayAllowance:
    """Allowance of bytes per minute, which may be saved up for a minute. A transfer that has begun may end; its
    debt delays the next.

    0: nothing is allowed. Thread-safe.
    """

    def __init__(self, bytes_per_min: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._most, self._clock = bytes_per_min / 60, bytes_per_min, clock
        self._left, self._at = bytes_per_min, clock()
        self._lock = threading.Lock()

    @property
    def is_none(self) -> bool:
        """Return whether the allowance is zero."""
        return self._most == 0

    def wait_s(self) -> float:
        """Return the seconds until a request may start; 0: now."""
        with self._lock:
            self._refill()
            return 0.0 if self._left > 0 else -self._left / self._per_s + 1.0

    def spend(self, nbytes: int) -> None:
        """Subtract relayed bytes."""
        with self._lock:
            self._refill()
            self._left -= nbytes

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now


@dataclass(frozen=True)
class RelayUplink:
    """Connection to the coordinator and allowance, with which a node relays for all its jobs."""

    link: Link
    allowance: RelayAllowance


@dataclass(frozen=True)
class RelayResponseHead:
    """Status and headers of a relayed answer."""

    status: int
    headers: dict[str, str]


class RelayServer:
    """The relay of one job. `has_way` tells whether this node reaches the coordinator directly. Used in the event loop.

    Raises what `RequestVerifier.update_roster` raises.
    """

    def __init__(
        self, documents: PeerDocuments, carrier: RelayUplink, byte_counts: ByteCounts, has_way: Callable[[], bool]
    ) -> None:
        self.carrier, self.byte_counts, self._has_way = carrier, byte_counts, has_way
        self._verifier = RequestVerifier(documents.charter, peer_id_of(documents.charter.coordinator_public_key))
        self._verifier.update_roster(documents.sealed_roster)
        job = re.escape(documents.charter.job)
        self._paths = {
            "POST": re.compile(rf"/api/v1/jobs/{job}/relay"),
            **dict.fromkeys(("GET", "HEAD", "PUT"), re.compile(rf"/api/v1/jobs/{job}/blobs/[0-9a-f]{{64}}")),
        }
        self.open = Counter[str]()
        """Relayed requests in progress, by sender."""

    def update_roster(self, sealed: bytes) -> None:
        """Use a newer roster."""
        self._verifier.update_roster(sealed)

    def examine(self, method: str, path: str, query: str, headers: Headers) -> RelayedCall:
        """Check by its headers whether a request may be relayed, and use up its number.

        Raises `Refused` (`relay.path`, `trust.…`), `NotAllowed` (`trust.…`), and `TryLater`: `relay.no-way`,
        `relay.budget`, `relay.busy`.
        """
        allowed = self._paths.get(method)
        if allowed is None or not allowed.fullmatch(path):
            raise Refused(
                f"{method} {path[:80]} is not relayed", code="relay.path", hint="send it to the coordinator directly"
            )
        headers = list(headers)
        request = read_request(method, path, query, headers)
        claim = self._verifier.examine(request, wall_s())
        self._check_capacity(claim.node)
        node = self._verifier.admit(claim, request.digest, wall_s())  # its body is for the coordinator to look at
        self.open[node] += 1
        return RelayedCall(self, node, request, {name: value for name, value in headers if name in _UP})

    def _check_capacity(self, node: str) -> None:
        if not self._has_way():
            raise _later("this node does not hear the coordinator either", "relay.no-way", NO_WAY_S)
        wait_s = self.carrier.allowance.wait_s()
        if wait_s:
            raise _later("this node has passed on as much as it may for now", "relay.budget", wait_s)
        if self.open[node] >= AT_ONCE_EACH_MAX or self.open.total() >= AT_ONCE_MAX:
            raise _later("this node passes on as many requests as it can at a time", "relay.busy", BUSY_S)

    def forget(self, node: str) -> None:
        """Remove a finished request."""
        self.open[node] -= 1


class RelayedCall:
    """One request on its way through, and its answer on the way back."""

    def __init__(self, relay: RelayServer, node: str, request: SignedRequest, headers: dict[str, str]) -> None:
        self.node, self._relay, self._request = node, relay, request
        self._headers = {**headers, **request.headers()}
        self._steps: Iterator[RelayResponseHead | bytes] | None = None
        self._ended = False

    async def start(self, body: AsyncIterator[bytes]) -> RelayResponseHead:
        """Send it on; how it is answered. Raises `Unreachable`, after which it has ended."""
        loop = asyncio.get_running_loop()
        self._steps = self._through(body, loop)
        try:
            head = await in_thread(lambda: next(self._steps, None))  # type: ignore[arg-type]  # it is one just made
        except BaseException as error:
            await self.end()
            if isinstance(error, ShoalError) and not isinstance(error, NotAllowed):
                text = f"the coordinator has not answered this node: {error.message}"
                raise Unreachable(text, code="relay.unreachable", hint="ask another peer of the job") from error
            raise
        assert isinstance(head, RelayResponseHead)
        return head

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the answer's body."""
        while True:
            piece = await in_thread(lambda: next(self._steps, b""))  # type: ignore[arg-type]  # begun
            if not isinstance(piece, bytes) or not piece:
                return
            yield piece

    async def end(self) -> None:
        """Let go of it, whether or not all has gone through."""
        if not self._ended:
            self._ended = True
            self._relay.forget(self.node)
            close = getattr(self._steps, "close", None)
            if close is not None:
                await in_thread(close)

    def _through(
        self, body: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop
    ) -> Iterator[RelayResponseHead | bytes]:
        """Run the exchange in threads, one step at a time."""
        signed, link, allowance = self._request, self._relay.carrier.link, self._relay.carrier.allowance
        path = f"{signed.path}?{signed.query}" if signed.query else signed.path
        content = self._sent(body, loop) if signed.method in ("POST", "PUT") else None
        with link.exchange(signed.method, path, headers=self._headers, content=content, own=True, accept=ANY) as answer:
            found = {name: answer.headers[name] for name in (*_DOWN, *_SIGNED) if name in answer.headers}
            yield RelayResponseHead(answer.status, found)
            for piece in answer.pieces():
                allowance.spend(len(piece))
                yield piece

    def _sent(self, body: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> Iterator[bytes]:
        """Yield the request's body no faster than it is relayed."""

        async def more() -> bytes:
            return await anext(body, b"")

        while piece := asyncio.run_coroutine_threadsafe(more(), loop).result():
            self._relay.carrier.allowance.spend(len(piece))
            yield piece


def _later(text: str, code: str, wait_s: float) -> TryLater:
    return TryLater(text, code=code, hint="ask another peer of the job, or this one later", retry_after_s=wait_s)

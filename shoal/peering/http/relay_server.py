"""What a node passes on to the coordinator for others of its job, whose own way there is broken.

    any  /p2p/JOB/hub/PATH    PATH as the coordinator has it: the job's relay, or a body of it (`shoal.runtime.relay`)

The one that says it has signed the request for the coordinator, and the coordinator signs its answer, or the answer is
known by its SHA-256. So nothing here is read, and nothing need be believed of who carries: bytes go through piece by
piece, whatever they are. But not for everybody: the signature must be that of a peer in the roster, the number new. Nor
without end: `Allowance` bounds the bytes, `AT_ONCE_MAX` the requests. Nobody passes on who has no way of its own; so a
word goes through one other at most.
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
from shoal.runtime.http import ANY, Link, TryLater
from shoal.runtime.threads import in_thread
from shoal.trust.envelope import Headers, Request, read_request
from shoal.trust.gatekeeper import Gatekeeper
from shoal.trust.keys import peer_id_of
from shoal_peer.folder import Papers
from shoal_peer.ledger import Ledger
from shoal_peer.link import wall_s

MODELS_MAX = 8
"""What is passed on in one body is no longer than so many of the job's models, and a letter's head."""
AT_ONCE_MAX = 8
"""Requests that are passed on at a time, for all."""
AT_ONCE_EACH_MAX = 4
NO_WAY_S = 30.0
"""How long a node that has no way of its own asks not to be asked again."""
BUSY_S = 1.0
_UP = ("content-type", "content-length", "content-range", "range")
_DOWN = ("content-type", "content-length", "content-range", "etag", "retry-after", "upload-offset")
_SIGNED = ("shoal-from", "shoal-digest", "shoal-signature")


class Allowance:
    """So many bytes per minute, which may be saved up for a minute. Whoever has begun may end: the debt is waited for.

    0: nothing is allowed. Any thread may call.
    """

    def __init__(self, bytes_per_min: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._most, self._clock = bytes_per_min / 60, bytes_per_min, clock
        self._left, self._at = bytes_per_min, clock()
        self._lock = threading.Lock()

    @property
    def is_none(self) -> bool:
        """Whether nothing is ever allowed."""
        return self._most == 0

    def wait_s(self) -> float:
        """Seconds until something may begin; 0: now."""
        with self._lock:
            self._fill_up()
            return 0.0 if self._left > 0 else -self._left / self._per_s + 1.0

    def spend(self, nbytes: int) -> None:
        """So many bytes have gone through."""
        with self._lock:
            self._fill_up()
            self._left -= nbytes

    def _fill_up(self) -> None:
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now


@dataclass(frozen=True)
class Carrier:
    """What a node carries with, for all its jobs: its own way to the coordinator, and how much it lends of it."""

    link: Link
    allowance: Allowance


@dataclass(frozen=True)
class Head:
    """The beginning of an answer."""

    status: int
    headers: dict[str, str]


class Carriage:
    """One job's. `has_way`: whether this node hears the coordinator by itself. Used in the event loop.

    Raises what the roster in the papers is refused with.
    """

    def __init__(self, papers: Papers, carrier: Carrier, ledger: Ledger, has_way: Callable[[], bool]) -> None:
        self.carrier, self.ledger, self._has_way = carrier, ledger, has_way
        self._gate = Gatekeeper(papers.charter, peer_id_of(papers.charter.coordinator_pub))
        self._gate.take_roster(papers.sealed_roster)
        job = re.escape(papers.charter.job)
        self._paths = {
            "POST": re.compile(rf"/api/v1/jobs/{job}/relay"),
            **dict.fromkeys(("GET", "HEAD", "PUT"), re.compile(rf"/api/v1/jobs/{job}/bodies/[0-9a-f]{{64}}")),
        }
        self.open = Counter[str]()
        """Requests that are being passed on, by who says them."""

    def take_roster(self, sealed: bytes) -> None:
        """A newer roster has come."""
        self._gate.take_roster(sealed)

    def examine(self, method: str, path: str, query: str, headers: Headers) -> Errand:
        """Whether this is to be passed on, by its head alone. Its number is used up, if so.

        Raises `Refused` (`relay.path`, `trust.…`), `NotAllowed` (`trust.…`), and `TryLater`: `relay.no-way`,
        `relay.budget`, `relay.busy`.
        """
        allowed = self._paths.get(method)
        if allowed is None or not allowed.fullmatch(path):
            raise Refused(f"{method} {path[:80]} is not passed on", code="relay.path", hint="say it by your own way")
        headers = list(headers)
        request = read_request(method, path, query, headers)
        claim = self._gate.examine(request, wall_s())
        self._check_capacity(claim.node)
        node = self._gate.admit(claim, request.digest, wall_s())  # its body is for the coordinator to look at
        self.open[node] += 1
        return Errand(self, node, request, {name: value for name, value in headers if name in _UP})

    def _check_capacity(self, node: str) -> None:
        if not self._has_way():
            raise _later("this node does not hear the coordinator either", "relay.no-way", NO_WAY_S)
        wait_s = self.carrier.allowance.wait_s()
        if wait_s:
            raise _later("this node has passed on as much as it may for now", "relay.budget", wait_s)
        if self.open[node] >= AT_ONCE_EACH_MAX or self.open.total() >= AT_ONCE_MAX:
            raise _later("this node passes on as many requests as it can at a time", "relay.busy", BUSY_S)

    def forget(self, node: str) -> None:
        """One of its requests has come to its end."""
        self.open[node] -= 1


class Errand:
    """One request on its way through, and its answer on the way back."""

    def __init__(self, carriage: Carriage, node: str, request: Request, headers: dict[str, str]) -> None:
        self.node, self._carriage, self._request = node, carriage, request
        self._headers = {**headers, **request.headers()}
        self._steps: Iterator[Head | bytes] | None = None
        self._ended = False

    async def begin(self, body: AsyncIterator[bytes]) -> Head:
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
        assert isinstance(head, Head)
        return head

    async def pieces(self) -> AsyncIterator[bytes]:
        """The answer's body, as it comes."""
        while True:
            piece = await in_thread(lambda: next(self._steps, b""))  # type: ignore[arg-type]  # begun
            if not isinstance(piece, bytes) or not piece:
                return
            yield piece

    async def end(self) -> None:
        """Let go of it, whether or not all has gone through."""
        if not self._ended:
            self._ended = True
            self._carriage.forget(self.node)
            close = getattr(self._steps, "close", None)
            if close is not None:
                await in_thread(close)

    def _through(self, body: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> Iterator[Head | bytes]:
        """In threads, one step at a time."""
        signed, link, allowance = self._request, self._carriage.carrier.link, self._carriage.carrier.allowance
        path = f"{signed.path}?{signed.query}" if signed.query else signed.path
        content = self._sent(body, loop) if signed.method in ("POST", "PUT") else None
        with link.exchange(signed.method, path, headers=self._headers, content=content, own=True, accept=ANY) as answer:
            found = {name: answer.headers[name] for name in (*_DOWN, *_SIGNED) if name in answer.headers}
            yield Head(answer.status, found)
            for piece in answer.pieces():
                allowance.spend(len(piece))
                yield piece

    def _sent(self, body: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> Iterator[bytes]:
        """What the other sends, no faster than it is passed on."""

        async def more() -> bytes:
            return await anext(body, b"")

        while piece := asyncio.run_coroutine_threadsafe(more(), loop).result():
            self._carriage.carrier.allowance.spend(len(piece))
            self._carriage.carrier.link.traffic.count(up=len(piece))
            yield piece


def _later(text: str, code: str, wait_s: float) -> TryLater:
    return TryLater(text, code=code, hint="ask another peer of the job, or this one later", retry_after_s=wait_s)

"""The coordinator's HTTP API as commands use it: one credential, JSON in and out, events as they come."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import stamina.instrumentation

from shoal.cli.output import out
from shoal.core.errors import NotAllowed, Refused, ShoalError
from shoal.runtime import address, sse
from shoal.runtime.backoff import Backoff
from shoal.runtime.http import Link
from shoal.runtime.sse import ServerEvent
from shoal.settings import ClientSettings, load

BASE = "/api/v1"
METRICS_BYTES_MAX = 16 * 2**20
TICK_S = 0.5
"""How often a watcher of events is woken though nothing came."""
RECONNECT = Backoff(first_s=0.2, most_s=5.0, give_up_s=300.0)

_NO_TOKEN = "give an operator token: SHOAL_CLIENT__TOKEN_FILE=DATA/operator.token, or --token"  # noqa: S105


@dataclass(frozen=True)
class Body:
    """A file on its way: its length and SHA-256 where the coordinator says them, and its bytes."""

    nbytes: int | None
    digest: str
    pieces: Iterator[bytes]


def segment(name: str) -> str:
    """A name as one part of a path, whatever is in it."""
    return quote(name, safe="")


@contextmanager
def connect(url: str | None = None, token: str | None = None) -> Iterator[Api]:
    """The coordinator that options and settings name. Nothing is sent yet."""
    settings = load(ClientSettings, "client", config=out.flags.config, given={"url": url, "token": token})
    secret = settings.token.get_secret_value() or own_token(settings.url)

    def link() -> Link:
        return Link(
            settings.url,
            credential=secret,
            insecure=settings.insecure,
            ca_file=settings.ca_file,
            read_s=settings.timeout_s,
        )

    with link() as first:
        yield Api(first, link)
        if first.warning:
            out.warn(first.warning)


def own_token(url: str) -> str:
    """On the machine of the coordinator: what it wrote for its operators. Empty where there is none to read."""
    from shoal_coordinator.settings import Settings

    if not address.is_loopback(address.parse(url)):
        return ""
    path = load(Settings, "coordinator", config=out.flags.config).data / "operator.token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


class Api:
    """A coordinator. Every method raises `ShoalError`: `Unreachable`, `NotAllowed`, or what was answered.

    `open_link` makes a connection of its own for a stream of events.
    """

    def __init__(self, link: Link, open_link: Callable[[], Link]) -> None:
        self._link, self._open_link = link, open_link
        self.url = link.address.url

    @property
    def has_token(self) -> bool:
        """Whether requests carry a credential."""
        return bool(self._link.credential)

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """Read."""
        return self._json("GET", path, params=params or None)

    def every(self, path: str, what: str, **params: Any) -> list[Any]:
        """Read all pages of a list: what stands under `what` in each."""
        page = self.get(path, **params)
        found = list(page[what])
        while page.get("next"):
            page = self.get(path, after=page["next"], **params)
            found += page[what]
        return found

    def post(self, path: str, body: dict[str, Any], *, read_s: float | None = None) -> dict[str, Any]:
        """Make or change something. `read_s`: patience for the answer, if more than usual is needed."""
        return self._json("POST", path, body=body, read_s=read_s)

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Set something instead of what it was."""
        return self._json("PUT", path, body=body)

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Change a part of something."""
        return self._json("PATCH", path, body=body)

    def delete(self, path: str, **params: Any) -> dict[str, Any]:
        """Remove something."""
        return self._json("DELETE", path, params=params or None)

    def _json(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        out.detail(f"{method} {self.url}{BASE}{path}")
        with self._explained():
            found = self._link.json(method, BASE + path, **given)
        if not isinstance(found, dict | None):
            raise self._link.foreign()
        return found or {}

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what a person can do who has no credential, or who talks to something that is no coordinator."""
        try:
            yield
        except Refused as error:
            if error.code.startswith("http."):  # a problem of ours has a code of its own
                raise self._link.foreign() from error
            raise
        except NotAllowed as error:
            hint = error.hint if self.has_token else _NO_TOKEN
            raise NotAllowed(error.message, code=error.code, hint=hint) from error

    @contextmanager
    def download(self, path: str) -> Iterator[Body]:
        """A file. Raises `Unreachable` when it breaks off."""
        with self._explained(), self._link.exchange("GET", BASE + path) as answer:
            length, tag = answer.headers.get("content-length"), answer.headers.get("etag", "")
            yield Body(int(length) if length else None, tag.strip('"').removeprefix("sha256:"), answer.pieces())

    def upload(self, path: str, nbytes: int, pieces: Iterator[bytes]) -> None:
        """Send a file."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(nbytes)}
        with self._explained(), self._link.exchange("PUT", BASE + path, headers=headers, content=pieces):
            out.detail(f"PUT {self.url}{BASE}{path}: {nbytes} bytes")

    def metrics(self) -> dict[str, float]:
        """Return what /metrics says, of what has no labels."""
        with self._explained(), self._link.exchange("GET", "/metrics") as answer:
            lines = answer.read(METRICS_BYTES_MAX).decode().splitlines()
        return {name: float(value) for name, _, value in (line.partition(" ") for line in lines) if name.isidentifier()}

    def clock_skew_s(self) -> float:
        """How far the coordinator's clock is ahead of ours, to a second."""
        with self._explained(), self._link.exchange("GET", f"{BASE}/version") as answer:
            said, now = answer.headers.get("date"), time.time()
        if said is None:
            return 0.0
        ahead = parsedate_to_datetime(said).timestamp() - now
        return 0.0 if -1.5 < ahead <= 0 else ahead  # the header has whole seconds, cut off

    @contextmanager
    def events(self, job: str) -> Iterator[Iterator[ServerEvent | None]]:
        """A job's events as they come; None at least every `TICK_S`. Reconnects by itself, and misses nothing."""
        with self._open_link() as link:
            stream = _Stream(link, job)
            stream.thread.start()
            try:
                yield stream.events()
            finally:
                link.abort()
                stream.thread.join(TICK_S)


class _Stream:
    """Reads events in a thread, so that the main one can look at other things (and at Ctrl-C)."""

    def __init__(self, link: Link, job: str) -> None:
        self._link, self._job = link, job
        self._queue: queue.SimpleQueue[ServerEvent | ShoalError] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._read, name=f"events of {job}", daemon=True)

    def events(self) -> Iterator[ServerEvent | None]:
        while True:
            found = None
            with suppress(queue.Empty):
                found = self._queue.get(timeout=TICK_S)
            if isinstance(found, ShoalError):
                raise found
            yield found

    def _read(self) -> None:
        stamina.instrumentation.set_on_retry_hooks([])  # a log entry for each try would stand between the lines
        try:
            for event in sse.events(self._link, f"{BASE}/stream", params={"job": self._job}, backoff=RECONNECT):
                self._queue.put(event)
        except ShoalError as error:
            self._queue.put(error)

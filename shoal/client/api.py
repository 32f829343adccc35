"""Client of the coordinator's HTTP API: JSON, files and event streams with one credential."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import stamina.instrumentation

from shoal.configuration import ClientSettings
from shoal.core.errors import NotAllowed, Refused, ShoalError
from shoal.runtime.http import sse
from shoal.runtime.http.client import Link
from shoal.runtime.http.retry import Backoff
from shoal.runtime.http.sse import ServerEvent

if TYPE_CHECKING:
    from shoal.model_file import StartModel

BASE = "/api/v1"
METRICS_BYTES_MAX = 16 * 2**20
START_MODEL_S = 600.0
"""Seconds allowed for the start of a job whose initial model, perhaps gigabytes, goes to a remote store."""
TICK_S = 0.5
"""Seconds after which a reader of events is woken though nothing came."""
RECONNECT = Backoff(first_s=0.2, most_s=5.0, give_up_s=300.0)

_NO_TOKEN = "give an operator token: SHOAL_CLIENT__TOKEN_FILE=DATA/operator.token, or --token"  # noqa: S105


@dataclass(frozen=True)
class DownloadBody:
    """A file in transfer: length in bytes and SHA-256, where the coordinator sends them, and its pieces."""

    nbytes: int | None
    digest: str
    pieces: Iterator[bytes]


def segment(name: str) -> str:
    """Return a name as one segment of a URL path."""
    return quote(name, safe="")


@contextmanager
def opened(
    settings: ClientSettings, credential: str, trace: Callable[[str], None] = lambda text: None
) -> Iterator[CoordinatorApi]:
    """Yield a client for the coordinator that settings name. This sends no request."""

    def link() -> Link:
        return Link(
            settings.url,
            credential=credential,
            insecure=settings.insecure,
            ca_file=settings.ca_file,
            read_s=settings.timeout_s,
        )

    with link() as first:
        yield CoordinatorApi(first, link, trace)


class CoordinatorApi:
    """A client of a coordinator. Methods raise `ShoalError`: `Unreachable`, `NotAllowed`, or the coordinator's error.

    `open_link` makes a connection of its own for a stream of events. `trace` is called with each request, for people.
    """

    def __init__(
        self, link: Link, open_link: Callable[[], Link], trace: Callable[[str], None] = lambda text: None
    ) -> None:
        self._link, self._open_link, self._trace = link, open_link, trace
        self.url = link.address.url

    @property
    def warning(self) -> str:
        """Return what is unsafe about the connection; empty if nothing is."""
        return self._link.warning

    @property
    def has_token(self) -> bool:
        """Return whether requests carry a credential."""
        return bool(self._link.credential)

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """Send a GET request."""
        return self._json("GET", path, params=params or None)

    def every(self, path: str, what: str, **params: Any) -> list[Any]:
        """Return the items of all pages of a list; `what` is their key."""
        page = self.get(path, **params)
        found = list(page[what])
        while page.get("next"):
            page = self.get(path, after=page["next"], **params)
            found += page[what]
        return found

    def post(self, path: str, body: dict[str, Any], *, read_s: float | None = None) -> dict[str, Any]:
        """Send a POST request. `read_s` is the timeout in seconds for the answer."""
        return self._json("POST", path, body=body, read_s=read_s)

    def create_job(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Create a job from a request of `POST /jobs`; return it."""
        waits = wanted.keys() & {"start_model", "base_model"} or wanted["spec"].get("base_model")
        return self.post("/jobs", wanted, read_s=START_MODEL_S if waits else None)

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a PUT request."""
        return self._json("PUT", path, body=body)

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a PATCH request."""
        return self._json("PATCH", path, body=body)

    def delete(self, path: str, **params: Any) -> dict[str, Any]:
        """Send a DELETE request."""
        return self._json("DELETE", path, params=params or None)

    def _json(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        self._trace(f"{method} {self.url}{BASE}{path}")
        with self._explained():
            found = self._link.json(method, BASE + path, **given)
        if not isinstance(found, dict | None):
            raise self._link.foreign_answer()
        return found or {}

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add hints to errors: a missing credential, or a server that is not a coordinator."""
        try:
            yield
        except Refused as error:
            if error.code.startswith("http."):  # a problem of ours has a code of its own
                raise self._link.foreign_answer() from error
            raise
        except NotAllowed as error:
            hint = error.hint if self.has_token else _NO_TOKEN
            raise NotAllowed(error.message, code=error.code, hint=hint) from error

    @contextmanager
    def download(self, path: str) -> Iterator[DownloadBody]:
        """Yield a file. Raises `Unreachable` when the connection breaks."""
        with self._explained(), self._link.exchange("GET", BASE + path) as answer:
            length, tag = answer.headers.get("content-length"), answer.headers.get("etag", "")
            yield DownloadBody(int(length) if length else None, tag.strip('"').removeprefix("sha256:"), answer.pieces())

    def upload_model(self, model: StartModel, pieces: Iterator[bytes], *, base: bool = False) -> str:
        """Send an initial model, or the bytes of a base model that the coordinator lacks, and return its digest."""
        path, kept = f"/{'bases' if base else 'blobs'}/{model.digest}", 0
        if base:
            with self._explained(), self._link.exchange("HEAD", BASE + path, accept=404) as answer:
                answer.read(0)
                kept = int(answer.headers.get("upload-offset", "0")) if answer.status == 404 else model.nbytes
        if kept < model.nbytes:
            self.upload(path, model.nbytes, pieces, kept)
        return model.digest

    def upload(self, path: str, nbytes: int, pieces: Iterator[bytes], start: int = 0) -> None:
        """Send a file of `nbytes` bytes, from `start` on. `pieces`: all of it."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(nbytes - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{nbytes - 1}/{nbytes}"
            pieces = _skip(pieces, start)
        with self._explained(), self._link.exchange("PUT", BASE + path, headers=headers, content=pieces):
            self._trace(f"PUT {self.url}{BASE}{path}: {nbytes} bytes")

    def metrics(self) -> dict[str, float]:
        """Return the samples of /metrics that have no labels."""
        with self._explained(), self._link.exchange("GET", "/metrics") as answer:
            lines = answer.read(METRICS_BYTES_MAX).decode().splitlines()
        return {name: float(value) for name, _, value in (line.partition(" ") for line in lines) if name.isidentifier()}

    def clock_skew_s(self) -> float:
        """Return by how many seconds the coordinator's clock is ahead, to a second."""
        with self._explained(), self._link.exchange("GET", f"{BASE}/version") as answer:
            date, now = answer.headers.get("date"), time.time()
        if date is None:
            return 0.0
        ahead = parsedate_to_datetime(date).timestamp() - now
        return 0.0 if -1.5 < ahead <= 0 else ahead  # the header has whole seconds, cut off

    @contextmanager
    def events(self, job: str) -> Iterator[Iterator[ServerEvent | None]]:
        """Yield a job's events, and None at least every `TICK_S` seconds. Reconnects and resumes without gaps."""
        with self._open_link() as link:
            stream = _EventReader(link, job)
            stream.thread.start()
            try:
                yield stream.events()
            finally:
                link.abort()
                stream.thread.join(TICK_S)


def _skip(pieces: Iterator[bytes], nbytes: int) -> Iterator[bytes]:
    """Yield pieces without their first bytes."""
    for piece in pieces:
        if nbytes < len(piece):
            yield piece[nbytes:]
        nbytes = max(0, nbytes - len(piece))


class _EventReader:
    """A thread that reads events, so that the main thread can do other things and receive Ctrl-C."""

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

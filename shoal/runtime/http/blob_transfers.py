"""Transfers of models and updates: to and from the coordinator, or past it by the presigned URLs that it gives."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import structlog

from shoal.core.errors import Cancelled, NotAllowed, Refused, StorageFailed, Unreachable
from shoal.core.protocol.message import BlobRef
from shoal.runtime.http.client import Link
from shoal.runtime.http.link_connections import LinkTraffic
from shoal.runtime.http.node_link import NodeLink
from shoal.wire.payload import PIECE_BYTES, ByteSource

log = structlog.get_logger()

PENDING_TRANSFERS_MAX = 1000
"""Transfers that wait to be reported; beyond it the oldest are forgotten."""
SMALL_BYTES_MAX = 64 * 1024


@dataclass(frozen=True)
class PresignedUrl:
    """URL to download or upload a blob; `version`: the version that its bytes are counted under."""

    method: str
    url: str
    headers: Mapping[str, str]
    version: int

    @staticmethod
    def of(found: Mapping[str, Any]) -> PresignedUrl:
        """Parse the coordinator's answer. Raises `KeyError`, `TypeError`, `ValueError`."""
        headers = {str(name): str(value) for name, value in found["headers"].items()}
        return PresignedUrl(str(found["method"]), str(found["url"]), headers, int(found["version"]))

    @property
    def is_absolute(self) -> bool:
        """Return whether another server has the address."""
        return "://" in self.url

    @property
    def origin(self) -> str:
        """Return the server of the address."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def path(self) -> str:
        """Return path and query of the address."""
        return self.url.removeprefix(self.origin)


def transfer_report(link: Link, target: PresignedUrl, ref: BlobRef) -> dict[str, Any]:
    """Return the report of one direct transfer."""
    traffic: LinkTraffic = link.traffic
    return {
        "id": secrets.token_hex(8),
        "digest": ref.digest,
        "direction": "up" if target.method == "PUT" else "down",
        "version": target.version,
        "requests": traffic.requests,
        "up_head": traffic.up_head_bytes,
        "up_body": traffic.up_bytes,
        "down_head": traffic.down_head_bytes,
        "down_body": traffic.down_bytes,
    }


class BlobTransfers:
    """Transfers of blobs over a node's link, or past the coordinator by presigned URLs.

    The coordinator does not see the bytes of a direct transfer: they are counted here and reported to it, each transfer
    under an identifier of its own, so that reporting it twice counts once.
    """

    uses_presigned_urls = False
    """True if the coordinator offers presigned URLs."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link
        self._direct_links: list[Link] = []
        self._pending_transfers: deque[tuple[str, dict[str, Any]]] = deque(maxlen=PENDING_TRANSFERS_MAX)

    def abort(self) -> None:
        """Abort the direct transfers, from any thread."""
        for link in list(self._direct_links):
            link.abort()

    def uploaded_bytes(self, job: str, ref: BlobRef) -> int:
        """Return how many bytes of a blob the coordinator has."""
        with self._link.exchange("HEAD", _path(job, ref), own=True, accept=404) as answer:
            answer.read(0)
            if answer.status != 404:
                return ref.nbytes
            offset = answer.headers.get("upload-offset", "0")
        return min(int(offset), ref.nbytes) if offset.isdecimal() else 0

    def upload(
        self, job: str, ref: BlobRef, source: ByteSource, start: int = 0, cancelled: Callable[[], bool] = bool
    ) -> None:
        """Upload a blob from `start` on, piece by piece. Raises `Cancelled` when it is no longer wanted.

        It goes to the presigned URL as a whole; if that fails, to the coordinator.
        """

        def pieces(start: int = start) -> Iterator[bytes]:
            for place in range(start, ref.nbytes, PIECE_BYTES):
                if cancelled():
                    raise Cancelled("this blob is not needed any more")
                yield bytes(source[place : min(place + PIECE_BYTES, ref.nbytes)])

        target = self._presigned_url(job, ref, "POST") if self.uses_presigned_urls else None
        if target is not None:
            try:
                with self._direct_link(job, ref, target) as link:
                    made = pieces(0)
                    with link.exchange(target.method, target.path, headers=target.headers, content=made) as answer:
                        answer.read(SMALL_BYTES_MAX)
                return
            except (Refused, NotAllowed, StorageFailed, Unreachable) as error:
                log.warning(
                    "the store refuses the upload; sending the blob to the coordinator", job=job, error=error.message
                )
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(ref.nbytes - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{ref.nbytes - 1}/{ref.nbytes}"
        with self._link.exchange("PUT", _path(job, ref), headers=headers, content=pieces(), own=True) as answer:
            answer.read(SMALL_BYTES_MAX)

    @contextmanager
    def download(self, job: str, ref: BlobRef, start: int = 0) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield (start, pieces) of a blob, from `start` or from its beginning."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        target = self._presigned_url(job, ref, "GET") if self.uses_presigned_urls else None
        with ExitStack() as stack:
            answer = None
            if target is not None:
                try:
                    link = stack.enter_context(self._direct_link(job, ref, target))
                    sent = {**target.headers, **headers}
                    answer = stack.enter_context(link.exchange(target.method, target.path, headers=sent))
                except (Refused, NotAllowed, StorageFailed, Unreachable) as error:
                    log.warning(
                        "the store refuses the download; fetching the blob from the coordinator",
                        job=job,
                        error=error.message,
                    )
            if answer is None:
                answer = stack.enter_context(self._link.exchange("GET", _path(job, ref), headers=headers, own=True))
            begins = start if answer.status == 206 else 0
            if begins and not answer.headers.get("content-range", "").startswith(f"bytes {begins}-"):
                raise self._link.foreign_answer()
            yield begins, answer.pieces()

    def _presigned_url(self, job: str, ref: BlobRef, method: str) -> PresignedUrl | None:
        """Return the presigned URL of a blob; None to use the coordinator's own route."""
        body = {"bytes": ref.nbytes} if method == "POST" else None
        found = self._link.json(method, f"{_path(job, ref)}/presign", body=body, own=True)
        with self._link.decoding():
            target = PresignedUrl.of(found)
        return target if target.is_absolute else None

    @contextmanager
    def _direct_link(self, job: str, ref: BlobRef, target: PresignedUrl) -> Iterator[Link]:
        """Open a link for one transfer past the coordinator, and report its bytes afterwards."""
        link = self._link.sibling(target.origin)
        self._direct_links.append(link)
        try:
            yield link
        finally:
            self._direct_links.remove(link)
            link.close()
            self._pending_transfers.append((job, transfer_report(link, target, ref)))
            self._report_transfers()

    def _report_transfers(self) -> None:
        """Report direct transfers; those that fail are reported with the next."""
        while self._pending_transfers:
            job, one = self._pending_transfers[0]
            try:
                self._link.json("POST", f"/api/v1/jobs/{quote(job)}/transfers", body=one, own=True)
            except (Unreachable, StorageFailed) as error:
                log.info("transfer not reported yet", job=job, error=error.message)
                return
            except (Refused, NotAllowed) as error:
                log.warning("transfer not counted", job=job, error=error.message)
            if self._pending_transfers and self._pending_transfers[0][1] is one:
                self._pending_transfers.popleft()


def _path(job: str, ref: BlobRef) -> str:
    return f"/api/v1/jobs/{quote(job)}/blobs/{ref.digest}"

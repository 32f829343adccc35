"""Checkpoints that a node offers over the network to the holder of its coordinator's key.

    GET /p2p                              unsigned: {"peer_id": …, "jobs": […]}
    GET /p2p/JOB/charter                  unsigned
    GET /p2p/JOB/checkpoint               signed with the coordinator's key: an offer (`shoal.recovery.checkpoint`)
    GET /p2p/JOB/checkpoint/SHA256        signed likewise: the model of one of its manifests

A request is signed as peers sign theirs (`shoal.trust.envelope`), by the peer that the coordinator's key is; so it is
taken once, by that node alone, and only about a job whose charter names the key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from shoal.core.errors import Refused, ShoalError
from shoal.recovery.checkpoint import OFFER_BYTES_MAX, CheckpointOffer, offer_of
from shoal.runtime.http.client import Link, Response
from shoal.trust.documents import charter_of
from shoal.trust.envelope import Signer, sha256
from shoal.trust.keys import SigningKey

JOBS_MAX = 256


class NodeOffers:
    """One node, as a holder of the key asks it. `url`: where other nodes call it."""

    def __init__(self, link: Link, key: SigningKey) -> None:
        self._link, self._key, self._process_number = link, key, time.time_ns() // 1000
        self._signers: dict[str, Signer] = {}
        self._peer_id = ""

    def offers(self) -> list[CheckpointOffer | tuple[str, ShoalError]]:
        """Return a node's offers for each of its jobs; (job, error) if one is refused. Raises the errors of `Link`."""
        about: Any = self._link.json("GET", "/p2p", own=True)
        try:
            self._peer_id, jobs = str(about["peer_id"]), [str(job) for job in about["jobs"]][:JOBS_MAX]
        except (KeyError, TypeError):
            raise self._link.foreign_answer() from None
        return [self._offer(job) for job in jobs]

    def _offer(self, job: str) -> CheckpointOffer | tuple[str, ShoalError]:
        try:
            charter = charter_of(self._link.json("GET", f"/p2p/{quote(job)}/charter", own=True))
            if self._key.public_key != charter.coordinator_public_key:
                raise Refused("another coordinator's key has signed this job", code="restore.key")
            self._signers[job] = Signer(self._key, charter, self._process_number)
            with self._asked(job, f"/p2p/{quote(job)}/checkpoint") as answer:
                return offer_of(answer.read(OFFER_BYTES_MAX), self._link.address.url)
        except ShoalError as error:
            return job, error

    @contextmanager
    def model(self, job: str, digest: str) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Return (length, pieces) of a model, unverified."""
        with self._asked(job, f"/p2p/{quote(job)}/checkpoint/{digest}") as answer:
            yield int(answer.headers.get("content-length", "0")), answer.pieces()

    @contextmanager
    def _asked(self, job: str, path: str) -> Iterator[Response]:
        request = self._signers[job].request(self._peer_id, "GET", path, "", sha256(b""))
        with self._link.exchange("GET", path, headers=request.headers(), own=True) as answer:
            yield answer

"""Join certificates: a new peer shows its certificate and addresses while the coordinator is away.

    {"certificate": "…", "urls": ["http://10.0.0.9:9001"]}

is sent by a signed `POST /p2p/JOB/join-by-certificate`; the answer is the other peer's roster.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import InvalidPayload, ShoalError, message_of
from shoal.runtime.http.coordinator_url import parse
from shoal.trust.documents import JoinCert
from shoal.validation import strict_json

URLS_MAX, URL_CHARS = 4, 200
ENTRY_BYTES_MAX = JoinCert.BYTES_MAX + 2048
AGAIN_S = 5.0
"""A newcomer that is not known shows its certificate to one peer no more often than that."""


@dataclass(frozen=True)
class CertificateEntry:
    """A newcomer's request. `urls`: where it can be called; empty if it only calls."""

    certificate: bytes
    urls: tuple[str, ...]

    def text(self) -> bytes:
        """Return the request body."""
        return json.dumps({"certificate": self.certificate.decode("ascii"), "urls": list(self.urls)}).encode()


def read_entry(text: bytes) -> CertificateEntry:
    """Return a newcomer's request, unverified. Raises `InvalidPayload`."""
    try:
        values: Any = strict_json.loads(text)
        certificate, urls = values.pop("certificate"), values.pop("urls")
        fits = not values and len(urls) <= URLS_MAX and all(len(url) <= URL_CHARS for url in urls)
        entry = CertificateEntry(certificate.encode("ascii"), tuple(parse(url).url for url in urls))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ShoalError) as error:
        raise _wrong(message_of(error)[:100]) from None
    if not fits or not isinstance(urls, list):
        raise _wrong(f"it has a certificate and at most {URLS_MAX} urls")
    return entry


def _wrong(why: str) -> InvalidPayload:
    hint = "send your coordinator's certificate and your own address"
    return InvalidPayload(f"invalid request to enter: {why}", code="peer.entry", hint=hint)

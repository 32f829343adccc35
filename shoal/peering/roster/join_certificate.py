"""How a newcomer comes in while the coordinator is gone: it shows its certificate, and says where it can be called.

    {"certificate": "…", "urls": ["http://10.0.0.9:9001"]}

goes to `POST /p2p/JOB/enter`, signed as every request of a peer is; the answer is the roster that the other one holds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from shoal import strict_json
from shoal.core.errors import InvalidPayload, ShoalError, message_of
from shoal.runtime.address import parse
from shoal.trust.papers import JoinCert

URLS_MAX, URL_CHARS = 4, 200
ENTRY_BYTES_MAX = JoinCert.BYTES_MAX + 2048
AGAIN_S = 5.0
"""A newcomer that is not known shows its certificate to one peer no more often than that."""


@dataclass(frozen=True)
class Entry:
    """What a newcomer shows. `urls`: where it can be called; none: it calls."""

    certificate: bytes
    urls: tuple[str, ...]

    def text(self) -> bytes:
        """As it travels."""
        return json.dumps({"certificate": self.certificate.decode("ascii"), "urls": list(self.urls)}).encode()


def read_entry(text: bytes) -> Entry:
    """What a newcomer has shown; the certificate is not verified. Raises `InvalidPayload`."""
    try:
        values: Any = strict_json.loads(text)
        certificate, urls = values.pop("certificate"), values.pop("urls")
        fits = not values and len(urls) <= URLS_MAX and all(len(url) <= URL_CHARS for url in urls)
        entry = Entry(certificate.encode("ascii"), tuple(parse(url).url for url in urls))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ShoalError) as error:
        raise _wrong(message_of(error)[:100]) from None
    if not fits or not isinstance(urls, list):
        raise _wrong(f"it has a certificate and at most {URLS_MAX} urls")
    return entry


def _wrong(why: str) -> InvalidPayload:
    hint = "send what your coordinator gave you, and where you can be called"
    return InvalidPayload(f"not how one enters: {why}", code="peer.entry", hint=hint)

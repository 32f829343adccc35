"""httpx clients that are made in no time: reading the machine's certificates takes longer than most of our tests."""

from __future__ import annotations

import ssl
from typing import Any

import httpx

_TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client(**more: Any) -> httpx.Client:
    """A client for plain http, more patient than any poll is long."""
    return httpx.Client(verify=_TRUSTS_NOBODY, trust_env=False, **{"timeout": 120.0, **more})

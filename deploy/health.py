"""Health check of a container's process: exit code 0 if it works, else 1 and a line with the reason.

HEALTH_URL is the target: http(s)://…, which must answer with 200; or tcp://host:port, which must accept a connection.
An edge client, which has no port, asks its coordinator. Only the standard library, so that it starts fast.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import sys
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

PATIENCE_S = 3.0


def main(environment: Mapping[str, str]) -> int:
    """Ask once."""
    asked = environment.get("HEALTH_URL") or f"{environment.get('SHOAL_EDGE__URL', '').rstrip('/')}/healthz"
    try:
        url = urlsplit(asked)
        why = connected(url) if url.scheme == "tcp" else answered(url)
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = f"{type(error).__name__}: {error}"
    if why:
        sys.stderr.write(f"{asked}: {why}\n")
    return 1 if why else 0


def connected(url: SplitResult) -> str:
    """Return what is wrong with a port; "" if it accepts a connection."""
    with socket.create_connection((url.hostname or "", url.port or 0), PATIENCE_S):
        return ""


def answered(url: SplitResult) -> str:
    """Return what is wrong with an answer; "" if it is 200. The certificate matters to clients, not here."""
    if url.scheme not in ("http", "https") or not url.hostname:
        return "set HEALTH_URL, or SHOAL_EDGE__URL"
    if url.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        link: http.client.HTTPConnection = http.client.HTTPSConnection(
            url.hostname, url.port, timeout=PATIENCE_S, context=context
        )
    else:
        link = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE_S)
    try:
        link.request("GET", url.path)
        status = link.getresponse().status
    finally:
        link.close()
    return "" if status == 200 else f"status {status}"


if __name__ == "__main__":
    sys.exit(main(os.environ))

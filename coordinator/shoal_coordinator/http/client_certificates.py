"""Certificates of nodes, where the setting `tls_client_ca` asks for them: beside its credential a node must show one of
those authorities, made out to its own name. Browsers and commands of people need none.

TLS has verified a certificate before this module sees it. A node's name is a DNS name of the certificate, or its common
name where it has no DNS names.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from shoal.core.errors import NotAllowed
from shoal.validation.message_checks import NAME
from shoal_coordinator.settings import Settings

CERTIFIED_KEY = "shoal.certified"
"""Key of a request's scope for the names in its sender's certificate; missing without one."""

VOUCHED_KEY = "shoal.vouched"
"""Key of the identity in a request's ASGI scope that another coordinator vouches for: `operator`, or `node:NAME`."""

PASSED_ON_KEY = "shoal.passed-on"
"""Key that marks the ASGI scope of a request that another coordinator signed and forwarded."""

NAMES_MAX = 16
"""Names of one certificate that are looked at."""


def names_of(transport: asyncio.BaseTransport) -> tuple[str, ...] | None:
    """Return the names of nodes to which the other side's certificate is made out; None: it has shown none."""
    shown: Mapping[str, Any] | None = transport.get_extra_info("peercert")
    if not shown:
        return None
    found = [value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"]
    if not found:
        found = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    return tuple(name for name in found[:NAMES_MAX] if NAME.fullmatch(name))


def tls_options(settings: Settings) -> dict[str, Any]:
    """Return uvicorn's TLS options. Raises `NotAllowed` for settings that do not fit each other."""
    options = {
        "ssl_certfile": str(settings.tls_cert) if settings.tls_cert else None,
        "ssl_keyfile": str(settings.tls_key) if settings.tls_key else None,
    }
    if settings.tls_client_ca is None:
        return options
    if settings.tls_cert is None:
        raise NotAllowed("tls_client_ca without tls_cert", hint="nodes show certificates over https: give tls_cert too")
    return {**options, "ssl_ca_certs": str(settings.tls_client_ca), "ssl_cert_reqs": ssl.CERT_OPTIONAL}


def check_certificate(scope: Mapping[str, Any], settings: Settings, node: str) -> None:
    """Raise `NotAllowed` unless a node's certificate is as the settings ask for."""
    if settings.tls_client_ca is None:
        return
    names = scope.get(CERTIFIED_KEY)
    if names is None:
        raise NotAllowed(
            f"{node} has shown no certificate, and this coordinator asks nodes for one",
            code="auth.certificate",
            hint="set client_cert and client_key of the node; a proxy must leave TLS to the coordinator",
        )
    if node not in names:
        known = ", ".join(names) or "no name that a node can have"
        raise NotAllowed(
            f"the certificate is made out to {known}, not to {node}",
            code="auth.certificate",
            hint=f"give the node a certificate with the DNS name {node}",
        )

"""TLS of a client: verification of a server's certificate, and its own certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import ShoalError

ClientCert = tuple[Path, Path]
"""A certificate chain and its private key, in PEM form."""


@dataclass(frozen=True)
class TlsOptions:
    """TLS of one link. `insecure`: accept any certificate; `ca_file`: certificates (PEM) to trust instead of the
    system's; `client_cert`: the certificate to show over https."""

    insecure: bool = False
    ca_file: Path | None = None
    client_cert: ClientCert | None = None

    def context(self, scheme: str) -> ssl.SSLContext | None:
        """Return the TLS context for URLs of that scheme, or None. Raises `ShoalError` for a file that cannot be
        used."""
        if scheme == "http":
            return None
        context = self._trust()
        if self.client_cert is None:
            return context
        try:
            context.load_cert_chain(*self.client_cert)
        except (OSError, ssl.SSLError) as error:
            names = " and ".join(map(str, self.client_cert))
            hint = "give a certificate chain and its private key, without a password, in PEM form"
            raise ShoalError(f"{names}: {error}", code="usage.client-cert", hint=hint) from None
        return context

    def _trust(self) -> ssl.SSLContext:
        if self.insecure:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return context
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            hint = "give a file of certificates in PEM form"
            raise ShoalError(f"{self.ca_file}: {error}", code="usage.ca-file", hint=hint) from None

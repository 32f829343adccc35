"""The way to a coordinator over HTTP: the only file that imports httpx, and httpcore below it.

Synchronous, for threads: streaming a large body costs half as much here as in any asynchronous client. What arrives is
read piece by piece up to a limit; nothing is ever fetched whole and unbounded, no redirect is followed, no compressed
answer is accepted, no cookie kept. A `Link` may be used by several threads at once. It is httpx's transport that it
uses, not its client, whose cookies, redirects and merging of addresses cost as much as a small request does.

What the other side says becomes an error of the tree:

    no answer, broken off, too slow; 408, 425, 429, 5xx        Unreachable   (TryLater, where it asks to come again)
    an answer without the protocol's header                    Unreachable: a proxy, or something else, answered
    401, 403                                                   NotAllowed
    507                                                        StorageFailed (TryLaterFull)
    other 4xx                                                  Refused, with the code, text and hint of the problem
"""

from __future__ import annotations

import json
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from shoal import __version__, strict_json
from shoal.core.errors import InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed, Unreachable
from shoal.core.versions import PROTOCOLS
from shoal.runtime import address as addresses

PROTOCOL_HEADER = "Shoal-Protocol"
CONNECT_S = 10.0
READ_S = 30.0
"""Seconds without a single byte after which an answer has failed."""
WRITE_S = 60.0
"""Seconds that a piece of 1 MiB may take to be sent."""
ANSWER_BYTES_MAX = 64 * 1024 * 1024
PROBLEM_BYTES_MAX = 64 * 1024
ANY = -1
CONNECTIONS_MAX = 32
CONTINUE_S = 5.0
"""Seconds to wait for a "100 Continue" before a body is sent unasked."""

_HEADERS = {
    "User-Agent": f"shoal/{__version__}",
    "Accept-Encoding": "identity",
    PROTOCOL_HEADER: str(PROTOCOLS[-1]),
}

_ALERTS = ("certificate", "unknown ca", "unknown_ca", "bad_certificate")
"""In what TLS says of our own certificate."""

ClientCert = tuple[Path, Path]
"""A certificate chain and its private key, in PEM form."""

Params = Mapping[str, Any] | list[tuple[str, str]]


class TryLater(Unreachable):
    """The other side answered that it cannot now. `retry_after_s`: how long it asks to wait; 0: it does not say."""

    def __init__(self, message: str, *, code: str, hint: str, retry_after_s: float) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after_s = retry_after_s


class TryLaterFull(StorageFailed):
    """The other side has no room now, and nothing was changed there. `retry_after_s` as in `TryLater`."""

    def __init__(self, message: str, *, code: str, hint: str, retry_after_s: float) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after_s = retry_after_s


class Traffic:
    """Bytes of bodies that went over a link, and bytes of heads as HTTP/1.1 writes them."""

    def __init__(self) -> None:
        self.requests, self.up_bytes, self.down_bytes = 0, 0, 0
        self.up_head_bytes, self.down_head_bytes = 0, 0
        self._lock = threading.Lock()

    def count(self, requests: int = 0, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self.requests += requests
            self.up_bytes += up
            self.down_bytes += down

    def count_heads(self, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self.up_head_bytes += up
            self.down_head_bytes += down

    def take(self) -> tuple[int, int]:
        """(bytes up, bytes down) since this was last asked, heads and bodies."""
        with self._lock:
            found = self.up_bytes + self.up_head_bytes, self.down_bytes + self.down_head_bytes
            self.up_bytes = self.up_head_bytes = self.down_bytes = self.down_head_bytes = 0
        return found


class Link:
    """A persistent connection to one coordinator, with one credential.

    `insecure` allows plain http to a public address, and https with a certificate that nobody vouches for; `warning`
    then says so. `ca_file`: certificates (PEM) to trust instead of the usual ones. `client_cert`: what it shows
    of itself over https, to this address alone. `read_s`: patience for an answer.
    """

    def __init__(
        self,
        url: str,
        *,
        credential: str = "",
        insecure: bool = False,
        ca_file: Path | None = None,
        client_cert: ClientCert | None = None,
        read_s: float = READ_S,
        check: Callable[..., str] = addresses.check,
    ) -> None:
        self.address = addresses.parse(url)
        self.credential, self.insecure, self.warning = credential, insecure, ""
        self.traffic = Traffic()
        self._check, self._ca_file, self._client_cert = check, ca_file, client_cert
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._checked = self._closed = False
        self._timeout = httpx.Timeout(read_s, connect=CONNECT_S, write=WRITE_S).as_dict()
        self._transport = httpx.HTTPTransport(
            verify=self._trust(ca_file),
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX),
            proxy=_proxy(self.address),
        )

    def _trust(self, ca_file: Path | None) -> ssl.SSLContext | bool:
        trusting = self._trusting(ca_file)
        if self._client_cert is None or self.address.scheme == "http":
            return trusting
        context = httpx.create_ssl_context() if isinstance(trusting, bool) else trusting
        try:
            context.load_cert_chain(*self._client_cert)
        except (OSError, ssl.SSLError) as error:
            names = " and ".join(map(str, self._client_cert))
            hint = "give a certificate chain and its private key, without a password, in PEM form"
            raise ShoalError(f"{names}: {error}", code="usage.client-cert", hint=hint) from None
        return context

    def _trusting(self, ca_file: Path | None) -> ssl.SSLContext | bool:
        if self.address.scheme == "http":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody, and costs nothing to make
        if self.insecure:
            self.warning = "the certificate is not checked: anybody on the way can pose as the coordinator"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return context
        if ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ShoalError(
                f"{ca_file}: {error}", code="usage.ca-file", hint="give a file of certificates in PEM form"
            ) from None

    def elsewhere(self, url: str) -> Link:
        """A link to another server, with this one's trust and patience and without its credential."""
        made = Link(url, insecure=self.insecure, ca_file=self._ca_file, check=self._check)
        made._timeout = self._timeout
        return made

    def close(self) -> None:
        """End the connections that are idle."""
        self._transport.close()

    def abort(self) -> None:
        """Break off every request that is under way, from any thread; the link is of no use afterwards."""
        with self._lock:
            self._closed = True
            for one in self._sockets:
                with suppress(OSError):  # it has been closed already
                    socket.socket.shutdown(one, socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Any request

    @contextmanager
    def exchange(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | Iterator[bytes] | None = None,
        read_s: float | None = None,
        own: bool = False,
        accept: int = 0,
    ) -> Iterator[Answer]:
        """One request; the block reads the answer. A status of 300 and more is raised, except the one that is accepted
        (or `ANY`).

        `own`: only an answer with the protocol's header counts; without it a proxy spoke, or something else.
        """
        self._admit()
        timeout = self._timeout if read_s is None else {**self._timeout, "read": read_s}
        request = httpx.Request(
            method,
            f"{self.address.url}{path}",
            params=params,  # type: ignore[arg-type]  # httpx's own type leaves out what it takes
            content=content,
            headers={**_HEADERS, **self._authorization(), **(headers or {})},
            extensions={"timeout": timeout},
        )
        request.extensions["trace"] = partial(self._trace, request, len(content) if isinstance(content, bytes) else 0)
        self.traffic.count(1)
        with self._translated():
            response = self._transport.handle_request(request)
            reason = response.extensions.get("reason_phrase", b"").decode("ascii", "replace")
            said = _head_bytes(f"HTTP/1.1 {response.status_code} {reason}", response.headers)
            self.traffic.count_heads(down=said)
            try:
                if own and PROTOCOL_HEADER not in response.headers:
                    raise self.foreign()
                if response.status_code >= 300 and accept not in (response.status_code, ANY):
                    raise self._problem(response)
                yield Answer(self, response)
            finally:
                response.close()

    def once_welcome(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """A body that is sent when the other side asks for it, and not at all if it refuses; send `Expect` with it.

        Only for a link with one request at a time. Below TLS nothing can be seen, so nothing is waited for.
        """
        said = self._first_word()
        if said.startswith(b"HTTP/1.1 100"):
            self.traffic.count_heads(down=said.find(b"\r\n\r\n") + 4)
        elif said:
            raise httpcore.WriteError("refused before the body")  # which makes httpcore read the answer
        yield from pieces

    def _first_word(self) -> bytes:
        """The beginning of what the other side says, which stays to be read; nothing if it says nothing in time."""
        with self._lock:
            open_ones = [one for one in self._sockets if one.fileno() >= 0]
        if len(open_ones) != 1 or isinstance(open_ones[0], ssl.SSLSocket):
            return b""
        with selectors.DefaultSelector() as selector:
            selector.register(open_ones[0], selectors.EVENT_READ)
            with suppress(OSError):  # the other side has died: sending says so, as it does elsewhere
                return open_ones[0].recv(64, socket.MSG_PEEK) if selector.select(CONTINUE_S) else b""
        return b""

    def _admit(self) -> None:
        """Look once where the requests go."""
        if self._closed:
            raise Unreachable("the connection was given up", code="network.closed")
        if not self._checked:
            self.warning = self._check(self.address, insecure=self.insecure) or self.warning
            self._checked = True

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.credential}"} if self.credential else {}

    def _trace(self, request: httpx.Request, body_bytes: int, event: str, info: Mapping[str, Any]) -> None:
        """Know the sockets, to be able to break off; and count what has been sent. (Bodies in pieces count theirs.)"""
        if event == "http11.send_request_headers.complete":
            first = f"{request.method} {request.url.raw_path.decode('ascii')} HTTP/1.1"
            self.traffic.count_heads(up=_head_bytes(first, request.headers))
        elif event == "http11.send_request_body.complete":
            self.traffic.count(up=body_bytes)
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete", "proxy.start_tls.complete"):
            found = info["return_value"].get_extra_info("socket")
            with self._lock:
                self._sockets = {one for one in self._sockets if one.fileno() >= 0} | {found}
                closed = self._closed
            if closed:
                self.abort()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """httpx's errors become the tree's."""
        try:
            yield
        except httpx.TimeoutException as error:
            text = f"{self.address.url} did not answer in time"
            raise Unreachable(text, code="network.slow", hint=_CHECK) from error
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> Unreachable:
        said = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in said:
            hint = "set ca_file (SHOAL_CLIENT__CA_FILE; a node: SHOAL_EDGE__CA_FILE), or correct the address"
            return Unreachable(f"{self.address.url}: its certificate: {said}", code="tls.untrusted", hint=hint)
        if "alert" in said.lower() and any(word in said.lower() for word in _ALERTS):
            hint = (
                "set client_cert and client_key to a certificate of an authority that it knows, and that is valid now"
            )
            return Unreachable(f"{self.address.url} refuses our certificate: {said}", code="tls.refused", hint=hint)
        if "SSL" in said:
            hint = "is it http:// rather than https://?"
            return Unreachable(f"{self.address.url} does not speak TLS: {said}", code="tls.failed", hint=hint)
        hint = _CHECK
        if self._client_cert is not None and "disconnected" in said:  # all that some servers say of a certificate
            hint = f"does it refuse {self._client_cert[0]}? It must be of an authority that it knows, and valid now"
        return Unreachable(f"{self.address.url} cannot be reached: {said}", hint=hint)

    def _problem(self, response: httpx.Response) -> ShoalError:
        """The error that an answer of 300 and more stands for."""
        status = response.status_code
        if 300 <= status < 400:
            place = response.headers.get("location", "nowhere")
            return Refused(f"{self.address.url} redirects to {place}", code="http.redirect", hint="use that address")
        try:
            found = strict_json.loads(Answer(self, response).read(PROBLEM_BYTES_MAX))
        except (ValueError, RecursionError, InvalidPayload):
            found = None
        values = found if isinstance(found, dict) else {}
        text = str(values.get("detail") or values.get("title") or f"{status} {response.reason_phrase}")[:2000]
        code = str(values.get("code") or f"http.{status}")[:100]
        hint = str(values.get("hint") or "")[:2000]
        pause_s = _pause_s(response.headers.get("retry-after", ""))
        if status == 507:
            return TryLaterFull(text, code=code, hint=hint, retry_after_s=pause_s)
        if status in (408, 425, 429) or status >= 500:
            return TryLater(f"{self.address.url}: {text}", code=code, hint=hint, retry_after_s=pause_s)
        if status in (401, 403):
            return NotAllowed(text, code=code, hint=hint or "ask an operator for a token")
        return Refused(text, code=code, hint=hint)

    def problem(self, answer: Answer) -> ShoalError:
        """The error that an accepted answer of 300 and more stands for; reads it."""
        return self._problem(answer.response)

    def foreign(self) -> Unreachable:
        """The error for an answer that no coordinator gives."""
        text = f"{self.address.url} answers, but not as a coordinator does"
        return Unreachable(text, code="protocol.foreign", hint="check the address: http or https, host, port, path")

    def json(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        read_s: float | None = None,
        own: bool = False,
    ) -> Any:
        """Call a route with JSON: the values of the answer, None for an empty one. Raises as the table above says."""
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        made = {**({} if body is None else {"Content-Type": "application/json"}), **(headers or {})}
        with self.exchange(
            method, path, params=params, headers=made, content=content, read_s=read_s, own=own
        ) as answer:
            data = answer.read(ANSWER_BYTES_MAX)
        try:
            return strict_json.loads(data) if data else None
        except (ValueError, RecursionError):
            raise self.foreign() from None


def _head_bytes(first: str, headers: httpx.Headers) -> int:
    """Bytes of a head: its first line, its fields, and the empty line."""
    return len(first) + 4 + sum(len(name) + len(value) + 4 for name, value in headers.raw)


class Answer:
    """An answer whose head has come. Its body is read within a limit, or piece by piece."""

    def __init__(self, link: Link, response: httpx.Response) -> None:
        self._link, self.response = link, response
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        """Their names in any case."""

    def read(self, bytes_max: int) -> bytes:
        """The whole body. Raises `InvalidPayload` when it is longer."""
        pieces, length = [], 0
        for piece in self.pieces():
            length += len(piece)
            if length > bytes_max:
                text = f"{self._link.address.url} answers with more than {bytes_max} bytes"
                raise InvalidPayload(text, code="http.too-large")
            pieces.append(piece)
        return b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes, without a limit."""
        for piece in self.response.iter_raw():
            self._link.traffic.count(down=len(piece))
            yield piece


def _proxy(address: addresses.Address) -> str | None:
    """The proxy that the environment names for an address. Nothing on this machine is reached through one."""
    if addresses.is_loopback(address) or proxy_bypass(address.host):
        return None
    known = getproxies()
    named = known.get(address.scheme) or known.get("all")
    return named if named is None or "://" in named else f"http://{named}"


def _pause_s(said: str) -> float:
    """Seconds that a `Retry-After` asks for: a number, or a date; 0 for anything else."""
    with suppress(ValueError, OverflowError):
        if said.strip().isdecimal():
            return float(said)
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    return 0.0


_CHECK = "check the address and the network, and that the coordinator runs"

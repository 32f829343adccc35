"""HTTP client of a coordinator.

Synchronous, for threads: streaming a large body costs half as much as in an asynchronous client. Answers are read piece
by piece up to a limit; redirects, compressed answers and cookies are not supported. A `Link` is thread-safe. urllib3
reads a body in pieces as large as what has come, at a quarter of what httpx takes for its pieces of 64 KiB.

Answers are converted to errors:

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from urllib3 import BaseHTTPResponse, Timeout
from urllib3.exceptions import EmptyPoolError, HTTPError
from urllib3.exceptions import TimeoutError as SlowAnswer

from shoal import __version__
from shoal.core.errors import InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed, Unreachable
from shoal.core.protocol.protocol_versions import PROTOCOLS
from shoal.runtime.http import coordinator_url as addresses
from shoal.runtime.http.link_connections import LinkTraffic, OpenSockets, pool
from shoal.runtime.http.tls import ClientCert, TlsOptions
from shoal.validation import strict_json

PROTOCOL_HEADER = "Shoal-Protocol"
CONNECT_S = 10.0
POOL_S = 30
"""Seconds to wait for one of a link's connections."""
READ_S = 30.0
"""Seconds without a single byte after which an answer has failed."""
ANSWER_BYTES_MAX = 64 * 1024 * 1024
PROBLEM_BYTES_MAX = 64 * 1024
ANY = -1
PIECE_BYTES_MAX = 1 << 20
"""Bytes of an answer that are read at once; fewer if fewer have come."""
CONTINUE_S = 5.0
"""Seconds to wait for a "100 Continue" before a body is sent unasked."""

_HEADERS = {
    "User-Agent": f"shoal/{__version__}",
    "Accept-Encoding": "identity",
    PROTOCOL_HEADER: str(PROTOCOLS[-1]),
}

_ALERTS = ("certificate", "unknown ca", "unknown_ca", "bad_certificate")
"""Alerts of TLS about our own certificate."""

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


class Link:
    """A persistent connection to one coordinator, with one credential.

    `insecure` allows plain http to a public address, and https with an untrusted certificate; `warning` then says so.
    `ca_file`: certificates (PEM) to trust instead of the system's. `client_cert`: own certificate for https, sent to
    this address only. `read_s`: timeout of an answer.
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
        self.credential, self.warning = credential, ""
        self.traffic = LinkTraffic()
        self._check, self._tls = check, TlsOptions(insecure, ca_file, client_cert)
        self._sockets = OpenSockets()
        self._checked = False
        self._read_s = read_s
        self._pool = pool(self.address, self._tls.context(self.address.scheme), self.traffic, self._sockets)
        is_forwarded = self._pool.proxy is not None and self.address.scheme == "http"
        self._base = self.address.url if is_forwarded else self.address.path  # such a proxy wants whole addresses
        if insecure and self.address.scheme == "https":
            self.warning = "the certificate is not checked: any machine on the way can pose as the coordinator"

    def sibling(self, url: str) -> Link:
        """Return a link to another server with the same trust and timeouts, without the credential."""
        made = Link(url, insecure=self._tls.insecure, ca_file=self._tls.ca_file, check=self._check)
        made._read_s = self._read_s
        return made

    def close(self) -> None:
        """End the connections that are idle."""
        self._pool.close()

    def abort(self) -> None:
        """Abort all running requests, from any thread; the link is unusable afterwards."""
        self._sockets.abort()

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
    ) -> Iterator[Response]:
        """Send one request; the block reads the answer. A status of 300 or more is raised, except the accepted one (or
        `ANY`).

        `own`: only an answer with the protocol's header counts; without it a proxy spoke, or something else.
        """
        self._check_address()
        timeout = Timeout(connect=CONNECT_S, read=self._read_s if read_s is None else read_s)
        self.traffic.count(1)
        with self._translated():
            response = self._pool.urlopen(
                method,
                f"{self._base}{path}{_query(params)}" or "/",
                body=content,
                headers={**_HEADERS, **self._authorization(), **(headers or {})},
                timeout=timeout,
                pool_timeout=POOL_S,
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
            )
            self.traffic.count_headers(down=_head_bytes(response))
            try:
                if own and PROTOCOL_HEADER not in response.headers:
                    raise self.foreign_answer()
                if response.status >= 300 and accept not in (response.status, ANY):
                    raise self._problem(response)
                yield Response(self, response)
            finally:
                response.close()

    def after_continue(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield a body after "100 Continue", nothing after a refusal. Send `Expect` with it.

        Only for a link with one request at a time. Below TLS nothing can be seen, so nothing is waited for.
        """
        head = self._peek()
        if head.startswith(b"HTTP/1.1 100"):
            self.traffic.count_headers(down=head.find(b"\r\n\r\n") + 4)
        elif head:
            raise BrokenPipeError("refused before the body")  # which makes urllib3 read the answer
        yield from pieces

    def _peek(self) -> bytes:
        """Return the first bytes of the answer without consuming them; empty if none arrive in time."""
        opened = self._sockets.only()
        if opened is None or isinstance(opened, ssl.SSLSocket):
            return b""
        with selectors.DefaultSelector() as selector:
            selector.register(opened, selectors.EVENT_READ)
            with suppress(OSError):  # the other side has died: sending says so, as it does elsewhere
                return opened.recv(64, socket.MSG_PEEK) if selector.select(CONTINUE_S) else b""
        return b""

    def _check_address(self) -> None:
        """Look once where the requests go."""
        if self._sockets.aborted:
            raise Unreachable("the connection was given up", code="network.closed")
        if not self._checked:
            self.warning = self._check(self.address, insecure=self._tls.insecure) or self.warning
            self._checked = True

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.credential}"} if self.credential else {}

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate urllib3's errors to `ShoalError`."""
        try:
            yield
        except HTTPError as error:
            cause = _cause(error)
            if isinstance(cause, TimeoutError | SlowAnswer | EmptyPoolError):
                text = f"{self.address.url} did not answer in time"
                raise Unreachable(text, code="network.slow", hint=_CHECK) from error
            raise self._unreachable(cause) from error
        except ValueError as error:  # a header or a path that HTTP cannot carry
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> Unreachable:
        text = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in text:
            hint = "set ca_file (SHOAL_CLIENT__CA_FILE; a node: SHOAL_EDGE__CA_FILE), or correct the address"
            return Unreachable(f"{self.address.url}: its certificate: {text}", code="tls.untrusted", hint=hint)
        if "alert" in text.lower() and any(word in text.lower() for word in _ALERTS):
            hint = "set client_cert and client_key to a valid certificate of an authority that it trusts"
            return Unreachable(f"{self.address.url} refuses our certificate: {text}", code="tls.refused", hint=hint)
        if "SSL" in text:
            hint = "use http:// if the server has no TLS"
            return Unreachable(f"{self.address.url} does not speak TLS: {text}", code="tls.failed", hint=hint)
        hint = _CHECK
        shown = self._tls.client_cert
        if shown is not None and isinstance(error, RemoteDisconnected):  # all that some servers say of a certificate
            hint = f"does it refuse {shown[0]}? It must be of an authority that it knows, and valid now"
        return Unreachable(f"{self.address.url} cannot be reached: {text}", hint=hint)

    def _problem(self, response: BaseHTTPResponse) -> ShoalError:
        """Return the error for an answer with status 300 or more."""
        status = response.status
        if 300 <= status < 400:
            place = response.headers.get("location", "nowhere")
            return Refused(f"{self.address.url} redirects to {place}", code="http.redirect", hint="use that address")
        try:
            found = strict_json.loads(Response(self, response).read(PROBLEM_BYTES_MAX))
        except (ValueError, RecursionError, InvalidPayload):
            found = None
        values = found if isinstance(found, dict) else {}
        text = str(values.get("detail") or values.get("title") or f"{status} {response.reason}")[:2000]
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

    def problem(self, answer: Response) -> ShoalError:
        """Return the error for an accepted answer with status 300 or more; reads it."""
        return self._problem(answer.response)

    def foreign_answer(self) -> Unreachable:
        """Return the error for an answer that does not come from a coordinator."""
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
            raise self.foreign_answer() from None


def _query(params: Params | None) -> str:
    """Return the question mark and the parameters, lists as repeated names, truth values as in JSON."""
    pairs = list(params.items()) if isinstance(params, Mapping) else params or []
    shown = [(name, json.dumps(value) if isinstance(value, bool) else value) for name, value in pairs]
    return f"?{urlencode(shown, doseq=True)}" if shown else ""


def _cause(error: BaseException) -> BaseException:
    """Return the error that urllib3 has wrapped, perhaps several times."""
    while True:
        inner = [one for one in (error.__cause__, *error.args) if isinstance(one, BaseException)]
        if not inner:
            return error
        error = inner[0]


def _head_bytes(answer: BaseHTTPResponse) -> int:
    """Return the bytes of an answer's head: first line, fields and the empty line."""
    first = f"HTTP/1.1 {answer.status} {answer.reason or ''}"
    return len(first) + 4 + sum(len(name) + len(value) + 4 for name, value in answer.headers.iteritems())


class Response:
    """An answer whose head has come. Its body is read within a limit, or piece by piece."""

    def __init__(self, link: Link, response: BaseHTTPResponse) -> None:
        self._link, self.response = link, response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        """Their names in any case."""

    def read(self, bytes_max: int) -> bytes:
        """Return the whole body. Raises `InvalidPayload` if it is longer than that."""
        pieces, length = [], 0
        for piece in self.pieces():
            length += len(piece)
            if length > bytes_max:
                text = f"{self._link.address.url} answers with more than {bytes_max} bytes"
                raise InvalidPayload(text, code="http.too-large")
            pieces.append(piece)
        return b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body, without a limit."""
        while piece := self.response.read1(PIECE_BYTES_MAX):
            self._link.traffic.count(down=len(piece))
            yield piece


def _pause_s(text: str) -> float:
    """Return the seconds of a `Retry-After`, a number or a date; 0 for anything else."""
    with suppress(ValueError, OverflowError):
        if text.strip().isdecimal():
            return float(text)
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    return 0.0


_CHECK = "check the address and the network, and that the coordinator runs"
